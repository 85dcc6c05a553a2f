"""Reports: what is known of a run (`run_report`), its checks, tables and figures, and the page.

`consortia.report.document.write_report` writes the HTML file, `terminal` prints the same tables.
"""
