"""The command line: parse, call, show progress, print. The only place that prints or exits."""
