"""The command line: parse options, call one public function, print. The only place that prints or exits."""
