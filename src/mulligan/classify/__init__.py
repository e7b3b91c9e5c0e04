"""Classification of errors into failure kinds."""
