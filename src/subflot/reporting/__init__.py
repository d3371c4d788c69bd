"""Tables, figures and the report page, drawn from records."""
