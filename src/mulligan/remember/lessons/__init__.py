"""What is learned of many repairs: lessons, made, kept, written as files and told to a model."""
