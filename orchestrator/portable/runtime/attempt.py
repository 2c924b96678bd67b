"""One attempt to load an engine within a time limit, and what its failure means."""

import threading
from typing import Any, Dict, List, Optional

from ..worker.errors import StepError, kind_of_exception, printable
from .errors import Refusal
from .sessions import Job, Session, open_session


def open_within(job: Job, data: bytes, seconds: Optional[float]) -> Session:
    """The session, or a Refusal (stage load) that explains itself; None waits for ever."""
    found: Dict[str, Any] = {}
    lock = threading.Lock()

    def work() -> None:
        try:
            session = open_session(job, data)
        except Exception as error:  # noqa: BLE001  (a backend raises anything; it is the attempt's result)
            found["error"] = error
            return
        with lock:
            if not found.get("late"):
                found["session"] = session
                return
        session.close()  # nobody waits for it any more

    if seconds is None:
        work()
    else:
        thread = threading.Thread(target=work, name="enginefarm-load", daemon=True)
        thread.start()
        thread.join(seconds)
        with lock:
            if "session" not in found and "error" not in found:
                found["late"] = True
    if found.get("late"):
        text = "loading took more than {:g} s; its thread still hangs in this process".format(seconds or 0)
        raise Refusal("load", text, "restart the process, with isolate=True", "timeout")
    if "error" in found:
        raise refusal_of(found["error"]) from found["error"]
    session: Session = found["session"]
    return session


def refusal_of(error: BaseException) -> Refusal:
    """What a failed load means: the failure catalogue's words where it knows the lines, else the backend's own."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, StepError):
        stage = "backend" if error.kind == "backend-missing" else "load"
        refusal = Refusal(stage, error.message, "", error.kind)
        return explained(refusal, error.log) if error.log else refusal  # without a log the text is our own and says it all
    text = printable("{}: {}".format(type(error).__name__, error), 1000)
    return explained(Refusal("load", text, "", kind_of_exception(error) or "load-failed"), [text])


def explained(refusal: Refusal, lines: List[str]) -> Refusal:
    """The refusal with the cause that the failure catalogue finds in ``lines``; as it is when that knows none."""
    try:
        from ..facts.explain import explain_text

        causes = explain_text(lines)["causes"]
    except Exception:  # noqa: BLE001  (an explanation that fails must not hide the failure)
        return refusal
    if not causes:
        return refusal
    best = causes[0]
    why = "{} ({}, {})".format(refusal.why, best["sentence"].rstrip("."), best["code"])
    return Refusal(refusal.stage, why, best["fix"] or refusal.fix, best["kind"], best["code"])
