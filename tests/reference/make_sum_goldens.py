"""Exactly rounded sums from Python's rational numbers, for tests/core/exact_sum_test.cpp.

Writes sums/exact_sums.txt: one case a line, the sum and then its terms, as hex floats. Every sum is computed with
fractions.Fraction and must agree with math.fsum where that does not overflow. Made with Python 3.11.
"""
import math
import pathlib
import random
from fractions import Fraction

random.seed(20)
TINY, HUGE = 5e-324, float.fromhex("0x1.fffffffffffffp+1023")


def rounded(terms):
    """Nearest double of the exact sum, ties to even; int / int division of Python is correctly rounded."""
    exact = sum(map(Fraction, terms), Fraction(0))
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def anything():
    return random.choice([-1, 1]) * math.ldexp(random.getrandbits(53), random.randint(-1074, 970))


cases = [
    [1.0, 2.0**-53], [1.0, 2.0**-53, TINY], [1.0 + 2.0**-52, 2.0**-53], [1.0, -(2.0**-54)], [1.0, -(2.0**-54), -TINY],
    [1e308, 1e308, -1e308], [HUGE, 2.0**970], [HUGE, 2.0**969], [-HUGE, -(2.0**970)], [HUGE, HUGE, -HUGE, -HUGE],
    [TINY], [TINY, -TINY], [TINY] * 7, [2.0**-1022, -TINY], [-(2.0**-1022), TINY], [1e100, 1.0, -1e100], [0.1] * 10,
    [2.0**1023, TINY, -(2.0**1023)], [-1e16, 1.0, 1e16], [0.0, -0.0],
]
for count in (3, 10, 40):
    for _ in range(12):
        cases.append([random.gauss(0, 1) for _ in range(count)])
        cases.append([anything() for _ in range(count)])
        terms = [random.gauss(0, 1) * 10.0 ** random.randint(-200, 200) for _ in range(count // 2)]
        cases.append(terms + [-t for t in terms] + [random.gauss(0, 1e-30)])
lines = []
for terms in cases:
    total = rounded(terms)
    if math.isfinite(total) and max(map(abs, terms)) < 1e300:
        assert total == math.fsum(terms)
    lines.append(" ".join(float(x).hex() for x in [total] + terms))
path = pathlib.Path(__file__).parent / "sums" / "exact_sums.txt"
path.write_text("\n".join(lines) + "\n")
print(len(lines), "sums")
