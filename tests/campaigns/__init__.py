"""Programs made at random, and libraries' own suites, run against eager. A command each; see README.md."""
