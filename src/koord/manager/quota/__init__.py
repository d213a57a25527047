"""The quota topology of the running program: fed by informers, read by webhooks, with the evaluator that
writes requests.
"""
