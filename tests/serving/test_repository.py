# SPDX-License-Identifier: Apache-2.0
"""Models are loaded and unloaded while others run."""

import threading

import numpy as np
import onnx
import pytest
from tests.serving.conftest import answer_of, json_input
from tests.serving.test_queue import LONG, Gate, wait_until

import intarsia
from intarsia.errors import IntarsiaError, SettingError
from intarsia.serving.repository import find_models, name_models

X = np.ones((1, 3), np.float32)
BODY = {"inputs": [json_input("x", X)]}


def index_of(server, **body):
    found = server.client.post("/v2/repository/index", json=body).json()
    return {one["name"]: (one["state"], one["reason"]) for one in found}


def control(server, name, verb, **body):
    return server.client.post(f"/v2/repository/models/{name}/{verb}", json=body)


def test_a_model_is_unloaded_and_loaded_again(start, rows_model):
    server = start({"rows": rows_model, "other": rows_model})
    assert index_of(server) == {"rows": ("READY", ""), "other": ("READY", "")}
    assert control(server, "rows", "unload").json() == {}
    assert index_of(server)["rows"] == ("UNAVAILABLE", "unloaded")
    assert list(index_of(server, ready=True)) == ["other"]
    answer = server.infer("rows", BODY)
    assert (answer.status_code, answer.json()["error"]) == (
        503,
        "model 'rows' does not answer: unloaded",
    )
    assert server.client.get("/v2/models/rows/ready").status_code == 503
    assert server.infer("other", BODY).status_code == 200
    assert control(server, "rows", "unload").status_code == 200  # again changes nothing
    assert control(server, "rows", "load").json() == {}
    assert server.infer("rows", BODY).status_code == 200


def test_a_model_whose_file_has_changed_takes_the_place_of_the_one_before(
    start, rows_model, parse_model, tmp_path
):
    server = start({"rows": rows_model})
    doubled = parse_model("m (float[n, 3] x) => (float[n, 3] z) { z = Add(x, x) }")
    onnx.save(doubled, tmp_path / "rows.onnx")
    assert list(answer_of(server.infer("rows", BODY))[1]) == ["y"]
    assert control(server, "rows", "load").status_code == 200
    assert answer_of(server.infer("rows", BODY))[1] == {"z": [2.0] * 3}
    (tmp_path / "rows.onnx").write_bytes(b"no model")
    answer = control(server, "rows", "load")
    assert answer.status_code == 400
    assert "rows.onnx" in answer.json()["error"]
    assert answer_of(server.infer("rows", BODY))[1] == {"z": [2.0] * 3}  # the one before stays


def test_models_of_a_folder_come_and_go(start, rows_model, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    server = start({}, repository=folder)
    assert index_of(server) == {}
    onnx.save(rows_model, folder / "late.onnx")
    (folder / "broken.onnx").write_bytes(b"")
    (folder / "notes.txt").write_text("none")
    assert index_of(server) == dict.fromkeys(("late", "broken"), ("UNAVAILABLE", "not loaded"))
    assert control(server, "late", "load").status_code == 200
    assert server.infer("late", BODY).status_code == 200
    assert control(server, "broken", "load").status_code == 400
    assert index_of(server)["broken"][1]
    (folder / "late.onnx").unlink()
    assert server.infer("late", BODY).status_code == 200
    assert "late" in index_of(server)
    control(server, "late", "unload")
    assert "late" not in index_of(server)


def test_nothing_is_loaded_from_what_a_request_brings(start, rows_model):
    server = start({"rows": rows_model})
    for parameters in ({"config": "{}"}, {"file:1/model.onnx": "AAAA"}):
        answer = control(server, "rows", "load", parameters=parameters)
        assert answer.status_code == 400
        assert next(iter(parameters)) in answer.json()["error"]


def test_models_of_a_server_that_is_not_controlled_stay(start, rows_model):
    server = start({"rows": rows_model}, is_controlled=False)
    for verb in ("load", "unload"):
        answer = control(server, "rows", verb)
        assert answer.status_code == 403
        assert "--control" in answer.json()["error"]
    assert server.infer("rows", BODY).status_code == 200


def test_what_is_in_flight_is_answered_before_a_model_goes(start, rows_model):
    gates = []

    def open_program(path):
        gates.append(Gate(intarsia.compile(path, "onnxruntime")))
        return gates[-1].program

    server = start({"rows": rows_model}, open_program=open_program)
    answers = []
    ask = threading.Thread(target=lambda: answers.append(server.infer("rows", BODY)))
    ask.start()
    assert gates[0].begun.acquire(timeout=LONG)
    gone = threading.Thread(target=lambda: answers.append(control(server, "rows", "unload")))
    gone.start()
    wait_until(lambda: index_of(server)["rows"][0] == "UNLOADING")
    assert server.infer("rows", BODY).status_code == 503
    gates[0].open.set()
    ask.join(LONG)
    gone.join(LONG)
    assert [one.status_code for one in answers] == [200, 200]
    assert index_of(server)["rows"] == ("UNAVAILABLE", "unloaded")


def test_a_type_that_the_protocol_has_not_is_no_model_to_serve(start, parse_model):
    model = parse_model("m (float8e4m3fn[2] x) => (float8e4m3fn[2] y) { y = Identity(x) }")
    with pytest.raises(IntarsiaError, match="'x' is float8_e4m3fn"):
        start({"eight": model}, open_program=lambda path: intarsia.compile(path, "reference"))


def test_models_have_the_names_of_their_files_or_those_that_are_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.onnx").touch()
    found = name_models(["dir/one.onnx", "two=dir/one.onnx", "a=b.onnx"])
    assert {name: str(path) for name, path in found.items()} == {
        "one": "dir/one.onnx",
        "two": "dir/one.onnx",
        "a=b": "a=b.onnx",
    }
    with pytest.raises(SettingError, match="two models have the name 'one'"):
        name_models(["one.onnx", "dir/one.intarsia"])
    with pytest.raises(SettingError, match="is no name"):
        name_models(["a/b=one.onnx"])


def test_a_package_goes_before_the_model_beside_it(tmp_path):
    for name in ("one.onnx", "one.intarsia", "two.onnx"):
        (tmp_path / name).touch()
    found = {name: path.name for name, path in find_models(tmp_path).items()}
    assert found == {"one": "one.intarsia", "two": "two.onnx"}
    with pytest.raises(SettingError, match="cannot be read"):
        find_models(tmp_path / "nowhere")
