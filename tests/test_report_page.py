"""The pages of reports in a real browser: they open, fold, search, follow links, and run nothing that a file says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

import onnx2nn
from tests import browser, report_models

pytestmark = pytest.mark.slow


def _page(tmp_path: Path, model: onnx.ModelProto) -> Path:
    path = tmp_path / "report.html"
    onnx2nn.report(model).save(path)
    return path


def _texts(driver: Any, selector: str) -> list[str]:
    """Returns the texts of elements, also of those out of view."""
    script = "return [...document.querySelectorAll(arguments[0])].map((found) => found.textContent)"
    return list(driver.execute_script(script, selector))


def _one(driver: Any, selector: str) -> Any:
    return driver.find_element("css selector", selector)


def _steps(driver: Any) -> list[str]:
    """Returns the names of the rows of the tree in view."""
    return _texts(driver, ".tree .row[role=treeitem] .step")


def _follow(driver: Any, act: Any, title: str) -> None:
    """Does something that changes the address, and waits for the module of this title.

    The inspector is drawn again meanwhile, so its heading may leave the page between being found and being read:
    it is read where it is found, in one step of the page.
    """
    from selenium.webdriver.support.wait import WebDriverWait

    act()
    WebDriverWait(driver, 10).until(lambda driver: _texts(driver, ".inspector h3") == [title])


def _type(driver: Any, element: Any, *keys: str) -> None:
    from selenium.webdriver.common.keys import Keys

    for key in keys:
        element.send_keys(getattr(Keys, key, key))


def test_modules_fold_and_show_their_graph(tmp_path: Path) -> None:
    with browser.opened(_page(tmp_path, report_models.stacked(3))) as driver:
        assert _texts(driver, "h1 .name") == ["graph"]
        assert _steps(driver) == ["graph", "layers", "0", "1", "2"]
        _one(driver, "#row-2 .twisty").click()
        assert _steps(driver) == ["graph", "layers", "0", "conv", "act", "1", "2"]
        _one(driver, "#row-2 .twisty").click()
        assert _steps(driver) == ["graph", "layers", "0", "1", "2"]
        _one(driver, "#row-2").click()
        assert _texts(driver, ".canvas .head") == ["x", "conv", "act", "add", "output"]
        assert "f32[1, 4, 8, 8]" in _texts(driver, ".canvas .note")
        assert "def forward(self, x):" in _one(driver, ".inspector .code").text
        assert _one(driver, ".tree .chosen .value").text == "f32[1, 4, 8, 8]"


def test_a_call_shows_its_nodes_and_its_weights(tmp_path: Path) -> None:
    with browser.opened(_page(tmp_path, report_models.stacked(2))) as driver:
        _follow(driver, lambda: driver.execute_script("location.hash = 'm=layers.1'"), "layers.1")
        _one(driver, ".canvas [data-call='1']").click()
        assert _one(driver, ".inspector h3").text == "layers.1.conv"
        assert _texts(driver, ".inspector .nodes li") == ["Conv /layers.1/conv/Conv"]
        assert _texts(driver, ".inspector .weight .value") == ["float32 [4, 4, 3, 3]"]
        assert len(driver.find_elements("css selector", ".inspector .histogram")) == 1
        assert _one(driver, ".canvas .chosen").get_attribute("data-call") == "1"


def test_searching_finds_modules_weights_and_nodes(tmp_path: Path) -> None:
    with browser.opened(_page(tmp_path, report_models.stacked(3))) as driver:
        _type(driver, _one(driver, "body"), "/")
        field = driver.switch_to.active_element
        _type(driver, field, "layers.1 conv")
        assert _texts(driver, ".found .name:first-child") == [
            "layers.1.conv",
            "layers.1.conv.weight",
            "/layers.1/conv/Conv",
        ]
        _type(driver, field, "ENTER")
        assert _one(driver, ".inspector h3").text == "layers.1.conv"
        assert "conv" in _steps(driver)
        _type(driver, field, "nothing of this name")
        assert _texts(driver, ".found") == []
        _type(driver, field, "ESCAPE")
        assert _steps(driver)[0] == "graph"


def test_keys_move_through_the_tree_and_the_graph(tmp_path: Path) -> None:
    with browser.opened(_page(tmp_path, report_models.stacked(3))) as driver:
        tree, canvas, title = (_one(driver, name) for name in (".rows[role=tree]", ".canvas", ".inspector"))
        _type(driver, tree, "ARROW_DOWN", "ARROW_DOWN", "ARROW_RIGHT", "ARROW_RIGHT")
        assert "layers.0.conv" in title.text
        assert tree.get_attribute("aria-activedescendant") == _one(driver, ".tree .chosen").get_attribute("id")
        _type(driver, tree, "ARROW_LEFT", "ARROW_LEFT", "ARROW_LEFT")
        assert title.text.startswith("layers\n")
        _type(driver, tree, "END")
        assert title.text.startswith("layers.2\n")
        _type(driver, tree, "HOME")
        assert _texts(driver, ".canvas .head") == ["x", "layers", "output"]
        _type(driver, canvas, "ARROW_DOWN", "ARROW_DOWN", "ENTER")
        assert _texts(driver, ".canvas .head") == ["input", "0", "1", "2", "output"]
        width = int(_one(driver, ".canvas svg").get_attribute("width"))
        _type(driver, canvas, "+")
        assert int(_one(driver, ".canvas svg").get_attribute("width")) > width
        _type(driver, canvas, "0", "BACKSPACE")
        assert _texts(driver, ".canvas .head") == ["x", "layers", "output"]


def test_links_and_the_plot_lead_to_modules(tmp_path: Path) -> None:
    model = report_models.stacked(3)
    module = onnx2nn.load(model)
    with torch.no_grad():
        module.layers[1].conv.weight[0] += 0.5
    path = tmp_path / "report.html"
    onnx2nn.report(model, module).save(path)
    with browser.opened(path) as driver:
        assert _one(driver, ".verdict").text == "Differs from ONNX Runtime"
        assert "over the threshold" in _one(driver, "#error").text
        link = next(found for found in driver.find_elements("css selector", "#error td a") if found.text)
        wanted = link.text
        driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", link)
        _follow(driver, link.click, wanted)
        plot = _one(driver, ".plot")
        assert _one(driver, ".plot .wrong").get_attribute("d").count("M") == 1
        _type(driver, plot, "ARROW_RIGHT")
        assert "/layers.0/conv/Conv introduces" in _one(driver, ".told").text
        _type(driver, plot, "ENTER")
        assert _one(driver, ".inspector h3").text == "layers.0.conv"


def test_names_of_a_file_are_shown_and_not_run(tmp_path: Path) -> None:
    with browser.opened(_page(tmp_path, report_models.hostile())) as driver:
        assert "run" not in driver.title.split()
        _one(driver, ".tree .tools button:last-child").click()
        text = driver.execute_script("return document.body.textContent")
        assert "\u202e" not in text and "\0" not in text and "\x07" not in text
        for name in report_models.HOSTILE[:6]:
            _type(driver, _one(driver, "input[type=search]"), name)
            assert any(name in shown.replace("\u2026", "") or name in shown for shown in _texts(driver, ".found .name"))
            _type(driver, _one(driver, "input[type=search]"), "ESCAPE")
        assert driver.find_elements("css selector", "#page img, #page script, #page [onclick], #page b[onclick]") == []
        assert driver.execute_script("return document.scripts.length") == 2
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_names_of_two_files_are_shown_and_not_run(tmp_path: Path) -> None:
    path = tmp_path / "compare.html"
    other = report_models.hostile()
    other.graph.node[-1].op_type = "Sigmoid"
    onnx2nn.compare(report_models.hostile(), other).save(path)
    with browser.opened(path) as driver:
        assert driver.title != "run"
        assert driver.find_elements("css selector", "#page img, #page script, #page [onclick]") == []
        assert _texts(driver, "tr.changed .small div") == [
            "relu is called 1 → 0 times",
            "sigmoid is called 0 → 1 times",
        ]


def test_scripts_that_are_not_the_page_s_own_do_not_run(tmp_path: Path) -> None:
    """The content security policy holds where an escape would fail."""
    path = _page(tmp_path, report_models.stacked(1))
    path.write_text(path.read_text().replace("</body>", "<script>document.title = 'run'</script></body>"))
    with pytest.raises(AssertionError, match="Content Security Policy"), browser.opened(path) as driver:
        assert driver.title != "run"


def test_problems_have_a_page(tmp_path: Path) -> None:
    with browser.opened(_page(tmp_path, report_models.unsupported())) as driver:
        assert _one(driver, ".verdict").text == "Cannot be imported"
        problems = _texts(driver, ".problems li")
        assert len(problems) == 2 and report_models.HOSTILE[0] in problems[0]
        assert _texts(driver, "#operators .good") == ["known"]


@pytest.mark.parametrize("nested", [False, True])
def test_large_models_are_drawn_in_parts(tmp_path: Path, nested: bool) -> None:
    model = report_models.stacked(600) if nested else report_models.nameless(2000)
    with browser.opened(_page(tmp_path, model)) as driver:
        _one(driver, ".tree .tools button:last-child").click()
        if nested:
            _follow(driver, lambda: driver.execute_script("location.hash = 'm=layers'"), "layers")
        assert len(driver.find_elements("css selector", ".tree .row[role=treeitem]")) < 100
        assert len(driver.find_elements("css selector", ".canvas .call")) == 160
        _one(driver, ".graph [aria-label='The calls after']").click()
        assert len(driver.find_elements("css selector", ".canvas .elsewhere")) == 1
        assert re.match(r"161–320 of \d", _one(driver, ".pages").text)  # noqa: RUF001, the page's own dash
        _type(driver, _one(driver, ".rows[role=tree]"), "END")
        assert ("layers.599.act" if nested else "graph") in _one(driver, ".inspector h3").text
        assert driver.execute_script("return document.querySelectorAll('*').length") < 4000


def test_light_and_dark_and_paper(tmp_path: Path) -> None:
    path = _page(tmp_path, report_models.stacked(2))
    grounds = []
    for dark in (False, True):
        with browser.opened(path, dark=dark) as driver:
            grounds.append(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
            if dark:
                paper = driver.print_page()
                assert len(paper) > 1000
                driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
                grounds.append(driver.execute_script("return getComputedStyle(document.body).backgroundColor"))
                over = "return [...document.querySelectorAll('.panel')].map((e) => e.scrollHeight - e.clientHeight)"
                assert max(driver.execute_script(over)) <= 0
                driver.set_window_size(700, 900)
                assert max(driver.execute_script(over)) <= 0
    light, dark_ground, paper_ground = (sum(map(int, re.findall(r"\d+", ground)[:3])) for ground in grounds)
    assert light > 700 and dark_ground < 100 and paper_ground == 765


def test_a_narrow_window_scrolls_down_only(tmp_path: Path) -> None:
    with browser.opened(_page(tmp_path, report_models.stacked(2)), size=(520, 800)) as driver:
        assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")


def test_two_models_side_by_side(tmp_path: Path) -> None:
    left, right = report_models.stacked(3), report_models.stacked(3)
    right.graph.initializer[1].raw_data = report_models.stacked(3, scale=0.2).graph.initializer[1].raw_data
    path = tmp_path / "compare.html"
    onnx2nn.compare(left, right).save(path)
    with browser.opened(path) as driver:
        assert _one(driver, ".verdict").text == "Outputs differ"
        assert _texts(driver, "tr.parts td:first-child bdi") == ["conv"]
        assert _texts(driver, "tbody tr.changed td:first-child bdi") == ["conv"]
        _one(driver, ".filter input[type=checkbox]").click()
        assert len(driver.find_elements("css selector", "#modules tbody tr")) == 11
        _type(driver, _one(driver, ".filter input[type=search]"), "layers.2")
        assert _texts(driver, "#modules tbody tr td:first-child bdi") == ["the model", "layers", "2", "conv", "act"]
