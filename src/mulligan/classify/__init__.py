"""What kind of failure is it?"""
