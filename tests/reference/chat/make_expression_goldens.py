"""Renders small templates with Transformers, one or a few features of Jinja each: expressions.json.

    pip install transformers==5.24.0 jinja2==3.1.6
    python make_expression_goldens.py

An entry is [template, text], or [template, null] where it raises. The variables are those of VARIABLES. The entries
of "left_out" use what the engine refuses: methods of str, filters and tests that no published template uses.
"""
import datetime
import importlib.metadata
import json
import pathlib
import re

from transformers.utils import chat_template_utils

NOW = datetime.datetime(2026, 3, 4, 5, 6, 7)


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = Clock

VARIABLES = {
    "messages": [
        {"role": "system", "content": " S\u00e9 "},
        {"role": "user", "content": "a<b> \u201cq\u201d", "n": 3, "x": 1.5, "l": [3, 1, 2], "d": {"b": 1, "A": [True, None]}},
        {"role": "assistant", "content": "<think>why</think>\n\nYes", "name": None},
    ],
    "bos_token": "<s>",
    "flag": True,
    "word": "Hello, W\u00f6rld",
    "words": ["pear", "Apple", "fig", "apple"],
    "people": [
        {"name": "Bo", "age": 3, "home": {"city": "x"}},
        {"name": "al", "age": 1, "home": {"city": "y"}},
        {"name": "Cy", "age": 3},
    ],
    "ids": {"u": 2**64 - 1, "big": 2**128 - 1, "low": -(2**63) - 1},
    "numbers": {"one": 1, "big": 9007199254740993, "f": 1e16, "g": 1e-05, "h": 0.1, "minus": -7},
}

EXPRESSIONS = """
ids | tojson|ids|ids.big|ids.u|'' ~ ids.low|[ids.big, none]|{'a': ids.low} | tojson(indent=1)|ids.big | string | length|ids.big | tojson | upper
'%d' % ids.big|'%s' % ids.low|'%i|%45d|' % (ids.low, ids.big)|'{}'.format(ids.big)|'{:,}'.format(ids.big)|'{:>45}'.format(ids.low)|'{:+d}'.format(ids.big)|'%.2f' % ids.u
ids.big > 5|ids.low < -1|ids.low > 0|ids.big == ids.big|ids.big != ids.u|ids.big == 340282366920938463463374607431768211455|ids.big == 340282366920938463463374607431768211456
ids.big > 3.4028236692093846e38|ids.big == 3.402823669209385e38|ids.low == -9.223372036854775808e18|ids.u < 1.8446744073709552e19|ids.u >= 18446744073709551615|ids.low <= -9223372036854775808
ids.big is number|ids.big is integer|ids.big is float|ids.big is string|ids.big | int|ids.big | float|-ids.big|- -ids.low|ids.low | abs|ids.big | abs|ids.u | round|1e25 | int|'15511210043330985984000000' | int
[ids.big, 1, ids.low, 2.5] | sort|[ids.u, ids.big] | max|ids.big in [1, ids.big]|{ids.big: 1}[ids.big]|'yes' if ids.low else 'no'|not ids.big|[ids.u, ids.u, 1] | unique | list|ids.values() | min
1 + 2 * 3 - 4 / 2|1 // 2|-7 // 2|-7 % 3|7 % -3|2 ** 10|2 ** -1|2 ** 3 ** 2|-2 ** 2|7.5 // 2|7.5 % 2|1e3|1_000|0x1f|0b101|0o17|.5
'a' + 'b'|'a' * 3|3 * 'ab'|[1] + [2]|[1, 2] * 2|(1, 2) + (3,)|'a' ~ 1 ~ none ~ true ~ 1.0|'a' + 1|1 + none|[1] + (2,)|1 / 0|-'a'
1 < 2 < 3|1 < 3 < 2|1 == 1.0|'a' < 'b'|'a' == 1|1 < 'a'|[1, 2] < [1, 3]|none == none|true == 1|not none|not ''|'' or 'x'|0 and 1|1 and 2
'a' in 'abc'|1 in [1]|'role' in messages[0]|1 in 'a'|'a' not in 'abc'|2 not in (1,)|'x' in undefined_thing|1 in none
undefined_thing|undefined_thing.x|undefined_thing + 1|undefined_thing == undefined_thing|undefined_thing['a']|undefined_thing()|messages.foo|messages[9]|messages[9].x
messages[0].role|messages[0]['role']|messages[-1].content|messages.0.role|messages[1].d.b|messages[1].d['A'][0]|messages[1].missing is defined
messages[1].n + 1|messages[1].x * 2|messages[1].l[0:2]|messages[1].l[::-1]|messages[1].l[1:]|word[0]|word[-1]|word[1:8:2]|word[::-1]|word[8:9]|word[99]|word[5:2]|[1,2,3][-2:]|(1,2,3)[:2]|word[::0]
true|True|none|None|[1, 'a', none, true, 1.5]|(1,)|()|{}|{'a': 1, 'b': [2]}|{1: 2}|{'a': 'it"s', 'b': "it's", 'c': '\\n\\t\\\\ \\u00e9\\x01'}|1.0|1e16|1e-5|0.1 + 0.2|1e22|123456789.125|1e15|-0.0
'x' if true else 'y'|'x' if false|'x' if false else 'y' if true else 'z'|('x' if false) is defined|'it' 's'|"a\\tb\\x41\\u00e9\\101\\q"|'\\''
word | upper|word | lower|word | title|word | capitalize|word | length|word | reverse|word | first|word | last|word | trim|' x ' | trim|'xxaxx' | trim('x')|word | replace('l', 'L')|word | replace('l', 'L', 1)|'' | replace('', 'x')|'ab' | replace('', '-')|word | wordcount|'stra\u00dfe \ufb01 \u01c6' | upper|'\u0130\u03a3\u03a3' | lower|"it's a-b (c)" | title|word | center(20)|'a' | center(4) ~ '|'
words | join(', ')|words | join|[1, none, true] | join('-')|words | sort | join(' ')|words | sort(case_sensitive=true) | join(' ')|words | sort(reverse=true) | join(' ')|words | unique | join(' ')|words | first|words | last|[] | first|words | length|words | list|words | reverse | list|words | map('upper') | list|words | map('length') | sum|words | select('in', ['fig', 'pear']) | list|words | reject('eq', 'fig') | list|[0, 1, '', 'a'] | select | list|words | batch(3) | list|words | batch(3, 'x') | list|range(7) | slice(3) | list|range(7) | slice(3, 'x') | list|words | min|words | max|[3, 1, 2] | sort|[3, 'a'] | sort|words | map('nofilter') | list|words | select('notest') | list|words | first | upper
people | map(attribute='name') | join(',')|people | map(attribute='home.city', default='?') | join(',')|people | selectattr('home') | map(attribute='name') | list|people | selectattr('age', 'equalto', 3) | map(attribute='name') | list|people | rejectattr('age', 'eq', 3) | list|people | sort(attribute='name') | map(attribute='name') | list|people | sort(attribute='age,name') | map(attribute='name') | list|people | groupby('age') | list|people | sum(attribute='age')|people | map(attribute='home.city') | list|people | max(attribute='age')|people | selectattr('age') | length|people | unique(attribute='age') | map(attribute='name') | list
messages[1].d | dictsort|messages[1].d | dictsort(true)|numbers | dictsort(by='value')|messages[1].d | items | list|messages[1].d.items() | list|messages[1].d.keys() | list|messages[1].d.values() | list|messages[1].d.get('b')|messages[1].d.get('z')|messages[1].d.get('z', 5)|messages[1].d | length|messages[1].d | list|messages[1].d | first|messages[1].d.items()|undefined_thing | items | list|3 | items | list
messages[1] | tojson|messages | tojson|numbers | tojson|people | tojson(indent=2)|{} | tojson|[] | tojson(indent=2)|'<a> & "q" \u00e9 \U0001f600 \x01' | tojson|'\u00e9\U0001f600' | tojson(ensure_ascii=true)|numbers | tojson(sort_keys=true)|{'a': [1, {'b': none}]} | tojson(separators=(',', ':'))|undefined_thing | tojson|(1, 2) | tojson|words | map('upper') | tojson|{1: 1, none: 2, true: 3, 1.5: 4} | tojson|[1.0, 1e100, -0.0] | tojson|{'a': {'b': [1, 2]}} | tojson(indent='\t')
undefined_thing | default('d')|'' | default('d')|'' | default('d', true)|none | default('d')|undefined_thing | d|'5' | int|'5.7' | int|'x' | int|'x' | int(7)|'ff' | int(base=16)|none | int|' 12 ' | int|'1_0' | int|'1.5' | float|'x' | float|true | int|2.7 | int|-2.7 | int|'-3' | int|undefined_thing | int|2.5 | round|3.14159 | round(2)|2.675 | round(2)|7 | round|2.1 | round(0, 'ceil')|2.19 | round(1, 'floor')|-3 | abs|'x' | abs|12.5 | string|none | string|[1] | string|'<&>' | escape|'<&>' | e|'<b>' | safe
'%s-%d-%05.1f' | format('a', 3, 2.5)|'%s' % 'a'|'%s %s' % ('a', 1)|'%s %s' % 'a'|'%d%%' % 5|'%x' % 255|'%5s|%-5s|' % ('a', 'b')|'%(a)s' % {'a': 1}|'{} {}'.format(1, 'b')|'{0}{0}{x}'.format(1, x=2)|'{{}}'.format()|'{}'.format()|'%r' % 'a'
'a\\nb\\n\\nc' | indent|'a\\nb\\n\\nc' | indent(2, true)|'a\\nb\\n\\nc' | indent(2, blank=true)|'a\\nb' | indent('> ', true)|'a long text that goes on and on' | truncate(12)|'a long text that goes on and on' | truncate(12, true)|'a long text' | truncate(12)|'a long text that goes on' | truncate(12, false, '~', 0)
1 is integer|true is integer|1.0 is float|1 is number|true is boolean|'a' is string|[] is sequence|{} is sequence|{} is mapping|[] is mapping|'a' is sequence|'a' is iterable|1 is iterable|none is none|none is defined|x is defined|x is undefined|x is sequence|x is iterable|x is string|1 is odd|2 is even|6 is divisibleby 3|1 is eq 1|1 is ne(2)|3 is gt 2|3 is lessthan 2|'a' is in ['a']|1 is sameas 1|true is true|1 is true|false is false|'AB' is upper|'ab1' is lower|range is callable|'x' is callable|'upper' is filter|'odd' is test|1 is not odd|(1, 2) is sequence|messages[1].d.items() is sequence|messages[1].d.items() is iterable|words | map('upper') is sequence|1 is odd is even|none is sequence
word.upper()|word.lower().title()|word.split()|word.split('l')|word.split('l', 1)|word.rsplit('l', 1)|' a  b '.split()|' a  b '.split(' ')|' a b c '.split(none, 1)|' a b c '.rsplit(none, 1)|'a'.split('')|word.startswith('Hell')|word.startswith(('x', 'H'))|word.endswith('d')|word.endswith(1)|word.strip('Hd')|'xxaxx'.lstrip('x')|'xxaxx'.rstrip('x')|'\u00a0a\u3000'.strip() ~ '.'|word.find('W')|word.find('z')|word.rfind('l')|word.index('z')|word.count('l')|word.count('')|word.replace('l', '')|word.removeprefix('Hello')|word.removesuffix('rld')|word.partition(', ')|word.rpartition('l')|word.partition('z')|word.isupper()|'AB'.isupper()|'12'.isdigit()|'a1'.isalnum()|''.isalpha()|'a\\nb\\r\\nc'.splitlines()|'a\\nb'.splitlines(true)|', '.join(words)|','.join([1])|'ab'.zfill(5)|'-1'.zfill(4)|'a'.ljust(3) ~ '.'|'a'.rjust(3)|'ab'.center(5) ~ '.'|'aB'.swapcase()|word.casefold()|'<think>r</think>t'.split('</think>')[-1]|'a</think>b'.split('</think>')[0].rstrip('\\n')|word.nothing|word.nothing()
words.index('fig')|words.count('fig')|words.append('x')|messages[0].update({})|words.pop()|[1, 2].sort()|messages[0].pop('role')|word.__class__|messages.__len__()|messages[0].__class__|range(1, 7, 2) | list|range(3, 0, -1) | list|range(0) | list|range(100001)|range(1, 2, 0)|dict(a=1, b=2)|dict({'a': 1}, b=2)|dict([('a', 1)])|namespace(a=1).a|raise_exception('no')|strftime_now('%Y-%m-%d %H:%M %d %B')|range(5)[2]
word.istitle()|'Ab C1'.istitle()|'aB'.istitle()|''.istitle()|'a\\tb\\nc\\td'.expandtabs(4)|'a\\tb'.expandtabs(0)|'\u00b2'.isdigit()|'\u00b2'.isdecimal()|'\u2167\u4e09'.isnumeric()|'\u00bd1a'.isalnum()|'\u00e9\\n'.isprintable()|'stra\u00dfe \u01c5 \u0390'.casefold()|'\u1f80\u0149\u00df'.title()|'\u0390\u01c5'.upper()|'\u0395.\u03a3. \u03a3\u0391'.lower()|'\u2170\u24d0'.islower()|'\u01c5'.isupper()|'\u01c5x'.swapcase()|'a b 1' | wordcount
'{:>5}|{:<5}|{:^6}|{:*^7}|{:05d}|{:+.1f}|{:x}|{:#X}|{:,}|{:.2%}|{:e}'.format('a', 'b', 'c', 'd', 42, 2.5, 255, 255, 1234567, 0.125, 12345.678)|'{0.role}{0[content]!r:>9}{1[0]}'.format(messages[0], words)|'{!s:.2}'.format(messages)|'{:5}|{:<5}|{:5}'.format(1, true, 1.5)|'{:=+7}'.format(-3)|'{:5}'.format(none)|'{:d}'.format('a')|'{:.1}'.format(3)|'{}{0}'.format(1)|'{x.y}'.format(x={})|'{:c}'.format(65)|'%c%c' % (66, 'x')
joiner('-') is callable|messages[2].name[1:]|messages[0][1:]|'%.1f|%e' % (1e20, 1e300)|'%+6x|%x|%#o|%05d|%-5d|% d|%08.3d|%+05d' % (0, -255, 8, -42, 7, 3, 5, 6)|[[1], [1]] | unique | list|[1] in {1: 2}|{(1, [2]): 3}|{1: 2}.get([1])
""".strip()

STATEMENTS = [
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{{ loop.changed(x, 'a') }} {% endfor %}",
    "{% for x in [[1], [1]] %}{% for y in x %}{{ loop.changed(y) }}{% endfor %}{{ loop.changed() }}{% endfor %}",
    "{% set ns = namespace() %}{% for x in [1, 2] %}{% set ns.f = loop.changed %}{% endfor %}{{ ns.f(loop=1) }}",
    "{% for x in [1, 2] %}{{ x }}{% continue %}{% else %}none{% endfor %}{% for x in [1, 2] %}{{ x }}{% break %}{% else %}none{% endfor %}{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{% else %}none{% endfor %}",
    "{% macro m(a, b=1) %}{{ varargs }}{% endmacro %}{{ m.name }}{{ m.arguments }}{{ m.catch_varargs }}{{ m.catch_kwargs }}{{ m.caller }}{{ m.explicit_caller }}",
    "{% macro m() %}{{ caller.name }}{{ caller.arguments }}{% endmacro %}{% call(x) m() %}{% endcall %}",
    "{% set j = joiner(', ') %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.pos }}{{ c.reset() }}{{ c.current }}{{ c.items }}",
    "{{ cycler() }}",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ m.role }}\n{% endfor %}",
    "{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m.role }}{{ loop.previtem.role }}{{ loop.nextitem.role }} {% endfor %}",
    "{% for a in [] %}x{% else %}none{% endfor %}",
    "{% for k, v in messages[1].d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in messages[1].d %}{{ k }}{% endfor %}{% for c in 'ab\u00e9' %}{{ c }}.{% endfor %}",
    "{% for a, b in [(1, 2), (3,)] %}{{ a }}{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for x in 5 %}{% endfor %}",
    "{% for x in none %}{% endfor %}",
    "{% for x in missing %}{{ x }}{% endfor %}ok",
    "{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 4 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in [1, 2] %}{% for y in [3, 4] %}{{ loop.depth }}{{ x }}{{ y }}{% if y == 3 %}{% continue %}{% endif %}{% break %}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for x in 'abc' %}{{ loop.cycle('o', 'e') }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
    "{% set ns = namespace() %}{% set ns._a = 1 %}",
    "{% set x = 1 %}{% set x.y = 2 %}",
    "{% set a, b = 1, 2 %}{{ b }}{{ a }}{% set a = 1, %}{{ a }}",
    "{% if x %}a{% elif flag %}b{% else %}c{% endif %}",
    "{% if true %}{% set q = 3 %}{% endif %}{{ q }}",
    "{% set q %}a{{ flag }}{% endset %}[{{ q }}]{{ q | length }}",
    "{% set q | upper | replace('A', 'x') %}abc{% endset %}{{ q }}",
    "{% filter upper | trim %} a{{ word }} {% endfilter %}",
    "{% with a = 1, b = flag %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% macro m(a, b='x', c=a) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 2) }}{{ m(b=3, a=4) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}in{{ flag }}{% endcall %}",
    "{% macro m() %}<{{ caller(7) }}>{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro m() %}{{ outer }}{% endmacro %}{% set outer = 5 %}{{ m() }}",
    "{% for i in [1] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}{{ m is defined }}",
    "{% macro fact(n) %}{% if n > 1 %}{{ n * (fact(n - 1) | int) }}{% else %}1{% endif %}{% endmacro %}{{ fact(10) }}",
    "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('a') ~ m('b') }}{{ m(1) | length }}{{ m.name }}",
    "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 1, 'b': 2}) }}{{ m(1, a=2) }}",
    "a\n{% if true %}\nb\n{% endif %}\nc\n",
    "  {% if true %}  \n  x\n  {%- endif +%}\n  y",
    "a  {{- ' b ' -}}  c\n\n {#- comment -#} \n d",
    "a\n   {# comment #}   \nb\n   {#+ kept #}\nc",
    "  {%+ if true %}x{% endif %}\n",
    "{% raw %}{{ x }} {% y %}\n{% endraw %}\nz",
    "  {%- raw -%}  {{ x }}  {%- endraw -%}  z",
    "   {% raw %}\n a {% endraw %}\n",
    "a\r\nb\rc\n\n",
    "x\n",
    "{{ 'a\\\nb' }}",
    "{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}{% if {'a': 1}['a'] == 1 %}y{% endif %}",
    "{{ 'a' }}\n{{ 'b' }}\n",
    "\t{% set x = 1 %}\tq",
    "{{ 1",
    "{% if %}{% endif %}",
    "{% if true %}",
    "{% endif %}",
    "{% nothing %}",
    "{{ 'open }}",
    "{# open",
    "{{ a b }}",
    "{{ ) }}",
    "{{ 'x' | nofilter }}",
    "{{ 'x' is notest }}",
    "{% for i in [] %}{{ 'x' | nofilter }}{% endfor %}",
    "{% if false %}{{ 'x' | nofilter }}{% endif %}fine",
    "{% break %}",
    "{% for i in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    "{% include 'x' %}",
    "{% set true = 1 %}",
    "{% generation %}a{% set x = 2 %}{{ x }}{% endgeneration %}[{{ x }}]",
    "{% for m in messages %}{% generation %}\n{{ m.content }}\n{% endgeneration %}\n{% endfor %}",
    "{{ messages | map(attribute='role') | list | tojson }}{{ messages[2].name is defined }}",
    "{{ messages[0]['content'] | trim }}{{ messages[1]['content'] | tojson }}{{ bos_token }}{{ add_generation_prompt }}{{ tools }}{{ documents }}",
    "{% set m = words | map('upper') %}{{ m | list }}{{ m | list }}",
    "{% set d = {'a': 1} %}{% set d = dict(d, b=2) %}{{ d }}{{ d.a }}{{ d['b'] }}",
    "{{ [messages[0].role, flag][1] }}{{ (1, 2)[0] }}{{ {'a': 1}.a }}{{ 'x'.join(['a', 'b']) }}",
    "{{ -1 | abs }}{{ - 1 | abs }}{{ 2 - -1 }}{{ +1 }}{{ not true or true }}{{ not (true or true) }}{{ 1 if not false else 2 }}",
    "{{ 1 ~ 2 + 3 }}{{ 'a' ~ 'b' * 2 }}{{ 1 + 2 ~ 3 }}",
    "{{ words is string or words is sequence and not words is mapping }}",
    "{{ loop is defined }}{% for i in [1] %}{{ loop is defined }}{% endfor %}",
    "{% set loop = 3 %}{{ loop }}",
    "{{ namespace }}{{ range is defined }}"[16:],
    "{{ messages | selectattr('role', 'equalto', 'system') | list | length }}{{ messages | rejectattr('role', 'in', ['user', 'system']) | map(attribute='role') | first }}",
    "{%- set ns = namespace(found=false, list=[]) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.found = true -%}{%- set ns.list = ns.list + [m.role] -%}{%- endif -%}{%- endfor -%}{{ ns.found }}{{ ns.list }}",
]


def render(template):
    try:
        variables = {k: v for k, v in VARIABLES.items() if k != "messages"}
        messages = chat_template_utils._normalize_chat_messages(VARIABLES["messages"])
        return chat_template_utils.render_jinja_template([messages], chat_template=template, **variables)[0][0]
    except Exception:  # noqa: BLE001
        return None


def pieces(line):
    """Cuts a line at "|" without spaces around it, outside of quotes."""
    out, quote, part = [], "", ""
    for i, c in enumerate(line):
        if c == "|" and not quote and line[i - 1] != " " and line[i + 1 : i + 2] != " ":
            out.append(part)
            part = ""
            continue
        if quote:
            quote = "" if c == quote and line[i - 1] != "\\" else quote
        elif c in "'\"":
            quote = c
        part += c
    return out + [part]


METHODS = (
    "casefold|center|encode|expandtabs|format|format_map|isalnum|isalpha|isascii|isdecimal|isdigit|isidentifier|islower|isnumeric|"
    "isprintable|isspace|istitle|isupper|ljust|maketrans|partition|rindex|rjust|rpartition|swapcase|translate|zfill"
)
FILTERS = "abs|attr|batch|center|e|escape|float|forceescape|format|groupby|max|min|round|slice|sum|truncate|wordcount"
TESTS = "callable|escaped|filter|lower|sameas|test|upper"
LEFT_OUT = re.compile(
    rf"\.({METHODS})\b|(word|'\w*')\.index\(|\|\s*({FILTERS})\b|map\('({FILTERS})'|\bis (not )?({TESTS})\b|"
    rf"(?<!map\()'({TESTS})'\)|\b(cycler|joiner)\b|['\"] % "
)

cases = [["{{ " + e + " }}", render("{{ " + e + " }}")] for line in EXPRESSIONS.splitlines() for e in pieces(line)]
cases += [[s, render(s)] for s in STATEMENTS]
left_out = [case for case in cases if LEFT_OUT.search(case[0])]
cases = [case for case in cases if not LEFT_OUT.search(case[0])]
versions = {p: importlib.metadata.version(p) for p in ("transformers", "jinja2")}
lines, left_out_lines = (",\n".join("  " + json.dumps(case) for case in some) for some in (cases, left_out))
path = pathlib.Path(__file__).parent / "expressions.json"
path.write_text(
    f'{{\n "versions": {json.dumps(versions)},\n "variables": {json.dumps(VARIABLES)},\n "cases": [\n{lines}\n ],\n "left_out": [\n{left_out_lines}\n ]\n}}\n'
)
print(len(cases), "cases,", len(left_out), "left out,", sum(case[1] is None for case in cases), "raise")
