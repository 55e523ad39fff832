"""What several commands have: options, how they are typed, tables and pictures."""
