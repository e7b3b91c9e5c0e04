"""A store moves house: copied, carried over to another engine, brought up to date."""
