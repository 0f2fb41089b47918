"""Tables, figures and pages, made from run directories alone."""
