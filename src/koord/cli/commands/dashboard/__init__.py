"""`koord dashboard`: the dashboard's rows from informers, its reports from the functions behind other commands."""
