"""A blinded survey that asks people whether two pictures, one of them anonymised or reversed, show one person.

`make.make_survey` draws pairs and makes their pictures, `make.write_survey` writes a page for each questionnaire,
`score.collect` reads answers, `score.judge` lets recognisers compare the same pictures, `score.score_survey` counts.

Source: Fantômas, appendix D.
"""
