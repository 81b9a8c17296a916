from rollfleet.cli.log_tail import LONGEST_LINE, MAX_CHARACTERS, MAX_LINES, LogTail


def test_the_newest_lines_stay_however_many_come() -> None:
    tail = LogTail()
    for number in range(3 * MAX_LINES):
        tail.add(str(number))
    lines = tail.text().split("\n")
    assert (len(lines), lines[-1]) == (MAX_LINES, str(3 * MAX_LINES - 1))
    assert tail.text(1) == lines[-1]


def test_long_lines_are_cut_and_take_no_more_than_their_share() -> None:
    tail = LogTail()
    for _ in range(1000):
        tail.add("x" * (1 << 20))
    text = tail.text()
    assert MAX_CHARACTERS - LONGEST_LINE <= len(text) <= MAX_CHARACTERS
    assert {len(line) for line in text.split("\n")} == {LONGEST_LINE}
