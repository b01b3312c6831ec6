from sim import docs


def test_the_tables_of_the_readme_are_those_of_the_main_job():
    assert docs.readme_text() == (docs.ROOT / "README.md").read_text(), "README.md: make docs"
