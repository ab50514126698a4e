"""What a run showed: the arithmetic, the result as JSON, the tables, the page with plots, and comparisons.

statistics  percentiles and distributions
result      the schema of a result, and how it is read and written
summary     from calls to a result's groups, teams and replicas
table       a result for the terminal
page        a result as one HTML file; plots draws its pictures
compare     two results side by side
"""
