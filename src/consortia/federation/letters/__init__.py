"""A study by letters: the coordinator's commands, and a site's."""
