"""Reports for people: a model as one HTML page, and two models side by side.

`model_report` and `model_comparison` say what is in them, in plain values; the other modules collect that from a file
and its module; `pages` writes it as HTML with the sources in `page/`.
"""
