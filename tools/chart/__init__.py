"""Write the generated parts of charts/koord from what the programs declare: run as `python -m tools.chart`.

Templates are the objects of `koord manifests` with Helm's actions in the places that values decide. Feature gates,
flags and CustomResourceDefinitions are data files of the chart. The schema and the table of values come from the
comments of values.yaml. A test writes all of it again and compares, so that chart, command and programs cannot differ.
"""
