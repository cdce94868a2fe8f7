"""What every check needs: its text, the calls of the reader's code, the search for the mistake."""
