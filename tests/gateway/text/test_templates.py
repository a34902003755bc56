import threading

import pytest

from gateway.text import TemplateRefused, TokenizerUnsupported
from gateway.text.bounds import OutOfFuel
from gateway.text.templates import Budget, ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize(
    ("source", "rendered"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s></s>"),
        ("{% for m in messages %}{{ m['role'] }}:{{ m.content }};{% endfor %}", "user:Hi;assistant:Ho;"),
        ("{% if add_generation_prompt %}go{% endif %}{% if tools %}tools{% endif %}", "go"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}a{{ 1 ~ 'b' }}{% endgeneration %}", "a1b"),
        ("{{ {'ä': '<'} | tojson }}", '{"ä": "<"}'),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') }}{{ m('b') }}", "<a><b>"),
        ("{% macro m(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call m('a') %}in{% endcall %}", "<ain>"),
        ("{{ missing }}{{ 'a' ~ missing }}|{{ messages[0].content.strip() | upper }}", "a|HI"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ '%s-%d' % ('a', 5) }}{{ 'ab' * 2 }}{{ 2 ** 8 }}{{ messages[::-1][0].role[:3] }}", "a-5abab256ass"),
        ("{% if true %}\n  x\n{% endif %}\ny", "  x\ny"),
        (
            "{{ ['a', 1] | join('-') }}{{ 'aba' | replace('a', 'c') }}{{ 'aba'.replace('b', 'cc') }}{{ ','.join(['x', 'y']) }}",
            "a-1cbcaccax,y",
        ),
        ("{{ [1, 2] | sum }}{{ 2.567 | round(1) }}{{ 'a\nb' | indent(2) }}{{ 5 | string }}{{ '{}-{x}'.format(1, x=2) }}", "32.6a\n  b51-2"),
        ("{{ {'a': [1]} | tojson(indent=1) }}{{ none }}{{ true }}{{ [1] }}", '{\n "a": [\n  1\n ]\n}NoneTrue[1]'),
    ],
)
def test_templates_render_as_models_expect(source: str, rendered: str) -> None:
    assert template(source).render(MESSAGES) == rendered


def test_todays_date_can_be_asked_for() -> None:
    assert len(template("{{ strftime_now('%Y-%m-%d') }}").render(MESSAGES)) == 10


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        "{% for m in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(90) %}{{ 'x' * 99999 }}{% endfor %}{% endfor %}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ [1] * 10 ** 10 }}",
        "{{ 2 ** (10 ** 9) }}",
        "{{ 'a'.ljust(10 ** 11) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (10 ** 10, 1) }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ '{:{}}'.format('a', 10 ** 7) }}",
        "{{ ('{0}' * 9999).format('a' * 99999) }}",
        "{{ ('%(x)s' * 9999) % {'x': 'a' * 99999} }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=['a' * 999]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=['a' * 999]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | string }}",
        "{% set ns = namespace(x=['a' * 999]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{{ ('a' * 99999) | replace('a', 'b' * 99999) | length }}",
        "{{ ('a' * 99999).replace('a', 'b' * 99999) | length }}",
        "{{ ('a' * 99999).replace('', 'b' * 99999) | length }}",
        "{{ (['a' * 999999] * 999) | join | length }}",
        "{{ ([''] * 999999) | join('a' * 9999) | length }}",
        "{{ ''.join(['a' * 999999] * 999) | length }}",
        "{{ {'a': [1]} | tojson(indent=10 ** 9) | length }}",
        "{{ ('a\\n' * 99999) | indent(99999) | length }}",
        "{{ ('\\t' * 99999).expandtabs(99999) | length }}",
        "{{ ([[1] * 99999] * 9999) | sum(start=[]) | length }}",
        "{{ 1.5 | round(10 ** 9, 'ceil') }}",
    ],
)
def test_template_that_goes_on_and_on_is_stopped(source: str) -> None:
    with pytest.raises((OutOfFuel, TemplateRefused)):
        template(source).render(MESSAGES, budget=Budget(max_steps=100_000, max_cpu_s=2.0))


def test_budget_is_a_renderings_own() -> None:
    loop = template("{% for i in range(600) %}{% endfor %}")
    for _ in range(3):
        loop.render(MESSAGES, budget=Budget(max_steps=1000, max_cpu_s=2.0))
    with pytest.raises(OutOfFuel, match="500 steps"):
        loop.render(MESSAGES, budget=Budget(max_steps=500, max_cpu_s=2.0))


def test_deadline_is_the_threads_own_time() -> None:
    endless = template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    with pytest.raises(OutOfFuel, match="too long"):
        endless.render(MESSAGES, budget=Budget(max_steps=10**9, max_cpu_s=0.01))


def test_stopped_rendering_leaves_its_thread() -> None:
    endless = template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
    raised: list[BaseException] = []

    def render() -> None:
        try:
            endless.render(MESSAGES, budget=Budget(max_steps=50_000, max_cpu_s=2.0))
        except OutOfFuel as error:
            raised.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert len(raised) == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.foo.bar }}", "foo"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "not safely callable|unsafe"),
        ("{{ messages[0].content + 5 }}", "TypeError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% include 'x' %}", "TypeError"),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "RecursionError"),
    ],
)
def test_template_that_fails_says_why(source: str, reason: str) -> None:
    with pytest.raises(TemplateRefused, match=reason):
        template(source).render(MESSAGES)


@pytest.mark.parametrize("source", ["{% for %}", "{{ lockgate_spend() }}", "{% set lockgate_join = 1 %}", "{{ x | nofilter }}"])
def test_invalid_template_is_refused_when_it_is_compiled(source: str) -> None:
    with pytest.raises(TokenizerUnsupported, match="chat template"):
        template(source)
