"""Moving pictures: reading and writing, tracks without gaps, redaction, projects to review.

A film goes through three stages that hand each other plain data: `found` (a `Project`), `decided` (a `FilmPlan`) and
`rendered`; `film` runs them and checks the result.
"""
