"""How an agent ended, in plain words, and who is responsible for it.

ending("crashed", 1, Account(failure="unexpected status 401 Unauthorized"))
    # crashed: "the API refused the key (401): unexpected status ...", and the API is responsible

The best evidence is the relay's record of the last requests, then the HTTP status that a transcript has in a field of
its own. Text comes last: agent systems word their messages differently and change them, and an agent can write what it
likes. So neither text nor transcript blames the API if the relay's record has no request that failed. A number in a
text is an HTTP status only beside the words of an API's error. tests/unit/agent_systems/endings.yaml lists what
agent systems print.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

from a2rl.core.files import FrozenModel
from a2rl.core.printable import printable

Responsible = Literal["agent", "api", "machine", "unknown"]
"""Who is responsible for an end: the agent, with its LLM; the LLM's API or account; or what this machine provides."""
MAX_WORDS = 300
MAX_LINES = 60
MANY_FAILURES = 3
"""So many failed requests in a row, at the deadline, are more than one that happened to be under way."""


class Account(FrozenModel):
    """What the transcript of an attempt says about its end. All of it may be wrong, or written by the agent."""

    failure: str = ""
    """The error that ended the attempt, in the agent system's words; empty if it names none."""
    status: int | None = None
    """The HTTP status of that error, if the transcript has it in a field of its own."""
    is_done: bool = False
    """Whether it says that the work was completed."""
    has_acted: bool = True
    """Whether the LLM has said or done anything."""
    stray: str = ""
    """The end of what was printed between the lines of the transcript."""


class FailedRequest(NamedTuple):
    """A request to the LLM that failed, as the relay recorded it."""

    status: int
    refused: str = ""
    """Why a2rl did not forward it, or got no answer; empty if the API answered."""
    is_late: bool = False
    """Whether the API had answered one like it before, in the same attempt."""

    @property
    def may_be_made_up(self) -> bool:
        """Whether the agent may have failed on purpose: an API that has answered knows its model and its address."""
        return self.is_late and self.status in {NOT_FOUND, REDIRECTED}


class Ending(NamedTuple):
    """How an attempt ended."""

    reason: str
    """finished, crashed, deadline or quota."""
    why: str = ""
    responsible: Responsible = "agent"


class Cause(NamedTuple):
    """A cause, and a regular expression for the messages that show it."""

    words: re.Pattern[str]
    why: str
    responsible: Responsible
    reason: Literal["crashed", "quota"] = "crashed"


def _cause(words: str, why: str, responsible: Responsible, reason: Literal["crashed", "quota"] = "crashed") -> Cause:
    # A gap has a limit, because a pattern with one that has none takes quadratic time.
    return Cause(re.compile(words.replace(".*", ".{0,80}"), re.IGNORECASE), why, responsible, reason)


OWN_LIMITS = (
    _cause(
        r"error_max_turns|maximum number of turns|session turns|turn ?limit|maximum iterations?\b|MaxIterationsReached"
        r"|LimitsExceeded",
        "it reached its turn limit", "agent", "quota",
    ),
    _cause(
        r"error_max_budget|budget.?(limit|has been )?exceeded|budget_limited|TimeExceeded",
        "it reached its own limit on cost or time", "agent", "quota",
    ),
    _cause(
        r"loop (was )?detected|stuck in a loop|StuckInLoop|_recoverFromLoop|cognitive loop|doom.?loop|^stuck\b",
        "it repeated itself and was stopped for that", "agent",
    ),
    _cause(
        r"FormatError|invalid stream|empty response|malformed (tool|function).?call|no content or tool calls",
        "the LLM's answers could not be used", "agent",
    ),
    _cause(
        r"tool calls? .*denied",
        "it was denied all that it wanted to do; look at the permissions in its definition", "machine",
    ),
)  # fmt: skip
"""What an agent system says when it ends by its own rules."""

SESSION_GONE = "the session that it was to continue is gone"
LOCAL = (
    _cause(
        r"command not found|(?:^|\s)(?:sh|dash|bash|\S+\.sh): (?:line )?\d+: \S+: not found|spawn \S+ ENOENT"
        r"|env: \S+: No such file|executable (file )?not found|No such file or directory: ['\"][\w.+-]+['\"]\s*$"
        r"|is not recognized as an internal",
        "a program is missing; `a2rl doctor` lists what is installed, and `a2rl agents install` installs agents",
        "machine",
    ),
    _cause(
        r"ModuleNotFoundError|No module named|Cannot find (module|package)|ERR_MODULE_NOT_FOUND|cannot import name"
        r"|cannot open shared object file|Could not find .{0,40}native binary",
        "a module or library is missing; `scripts/setup_environment.sh agent` or --python gives agents another "
        "environment, and `a2rl agents install` repairs an agent",
        "machine",
    ),
    _cause(
        r"(CUDA|HIP) out of memory|tried to allocate [\d.]+ [KMG]iB|CUBLAS_STATUS_ALLOC_FAILED"
        r"|No available memory for the cache blocks|cuda.*(out of|alloc).*memory",
        "the GPU's memory ran out; a smaller batch or model needs less", "agent",
    ),
    _cause(
        r"CUDA (driver )?error|no kernel image|No CUDA GPUs|no NVIDIA driver|NCCL (error|failure)|CUDA_ERROR",
        "the GPU cannot be used; `a2rl doctor` shows the GPUs", "machine",
    ),
    _cause(
        r"MemoryError|heap out of memory|cannot allocate memory|ENOMEM|bad_alloc|DefaultCPUAllocator|out of memory"
        r"|oom.?kill|line \d+: +\d+ Killed",
        "the memory ran out; train a smaller batch, or give the run more memory", "agent",
    ),
    _cause(
        r"number of file watchers|EMFILE|ENFILE|too many open files|can't start new thread|fork: .*unavailable"
        r"|uv_thread_create",
        "a limit of the system on files or processes was reached; see `ulimit -a`", "unknown",
    ),
    _cause(
        r"ENOSPC|no space left|EDQUOT|disk quota exceeded|database or disk is full|SQLITE_FULL",
        "the disk, or the agent's share of it, is full", "unknown",
    ),
    _cause(r"EROFS|read-only file ?system", "it tried to write where it may only read", "unknown"),
    _cause(
        r"(cannot|can't|must not|refus\w{1,8} to|not allowed to|should not) (be used |be )?(run )?(with|as) (the )?root"
        r"|as root without|root/sudo privileges",
        "it refuses to run as root; run a2rl as an ordinary user", "machine",
    ),
    _cause(
        r"\bEACCES\b|\bEPERM\b|PermissionError|: Permission denied|operation not permitted|os error (1|13)\b",
        "it was denied access to a file or a call of this machine; its sandbox allows only what `a2rl agents` lists",
        "unknown",
    ),
    _cause(
        r"Invalid regular expression flags|EBADENGINE|unsupported engine|requires? node|minimum node"
        r"|node(\.js)? (version )?(v?[\d.]+ )?is (not supported|too old)|ERR_UNKNOWN_BUILTIN_MODULE|File is not defined"
        r"|Unexpected token '?(\.|\?|\?\?=|\|\|=)",
        "Node.js is too old for it; install a newer one", "machine",
    ),
    _cause(
        r"GLIBC(XX)?_[\d.]+.? not found|illegal instruction|requires? AVX",
        "it does not run on this system, which is too old for it", "machine",
    ),
    _cause(
        r"(unknown|unrecognized|unexpected|no such|unsupported) (command.?line )?(option|argument|flag)s?\b"
        r"|invalid (option|choice|flag)|invalid value .* for '",
        "it does not know an option of its command line; `a2rl agents install` installs the version that does",
        "machine",
    ),
    _cause(
        r"self.?signed.cert|unable to (verify|get).*certificate|UNABLE_TO_(VERIFY|GET)|CERTIFICATE_VERIFY_FAILED"
        r"|certificate (has )?expired|CERT_HAS_EXPIRED|UnknownIssuer|invalid peer certificate|ERR_TLS_CERT",
        "a certificate is not trusted; SSL_CERT_FILE or NODE_EXTRA_CA_CERTS names those of your network", "machine",
    ),
    _cause(
        r"not logged in|missing environment variable|no api.?key|api.?key.*(not set|must be set|is missing|not found)"
        r"|set an auth method",
        "it has no API key; `a2rl agents` names the variable", "machine",
    ),
    _cause(
        r"invalid (configuration|settings)|error (loading|parsing) (the )?(config|settings)|ConfigInvalid|ConfigJson",
        "its settings are not valid; see `files` in its definition", "machine",
    ),
    _cause(
        r"ProviderModelNotFound|Model not found: ",
        "it does not know the model; --driver names another", "machine",
    ),
    _cause(
        r"session not found|no conversation found|no rollout found|session .{0,80} (does not exist|could not be found)",
        SESSION_GONE, "machine",
    ),
    _cause(
        r"Unicode(De|En)codeError|codec can't",
        "it met a text in an encoding that it could not read", "agent",
    ),
    _cause(
        r"bwrap:|bubblewrap|codex-linux-sandbox|--no-sandbox",
        "its own sandbox does not work inside this one", "machine",
    ),
    _cause(
        r"for url: ?http|requested URL returned error|HTTP Error \d+|ERROR \d{3}: |RepositoryNotFound|GatedRepo"
        r"|LocalEntryNotFound|OfflineModeIsEnabled|No matching distribution|npm (ERR!|error) code E",
        "a download failed; `logs/proxy.jsonl` lists the hosts that it tried to reach", "agent",
    ),
    _cause(r"EADDRINUSE|address already in use", "a port that it needs is in use", "unknown"),
    _cause(r"segmentation fault|core dumped|SIGSEGV", "a program crashed (segmentation fault)", "unknown"),
)  # fmt: skip
"""Causes on this machine."""

API_WORDS = (
    _cause(r"credit balance|insufficient_quota|payment required|out of credits|billing_error|billing_hard_limit",
           "the account has no credit left", "api"),
    _cause(
        r"(usage|session|weekly|hour|monthly|spending).limit|hit your .{0,20}limit|exhausted your|quota",
        "the account's usage limit is reached; wait until it resets, or use another key", "api",
    ),
    _cause(
        r"context.?(window|length)|ContextWindow|(prompt|input|request) is too long|maximum context"
        r"|token count .*exceeds|exceeds the limit of \d+|exceeds the maximum (number of|allowed) .*tokens",
        "the conversation outgrew the model's context window", "agent",
    ),
    _cause(
        r"content.?(filter|policy|management)|prohibited_content|invalid_prompt|cyber_policy|usage polic",
        "the API declined to answer this conversation", "api",
    ),
)  # fmt: skip
"""Words that say more than the HTTP status with which they come."""

API_CAUSES = (
    _cause(r"401|AuthenticationError|unauthorized|invalid.api.?key|api_key_invalid|authentication_(error|failed)"
           r"|ProviderAuthError|API key not valid|incorrect API key", "the API refused the key (401)", "api"),
    _cause(r"402", "the account has no credit left", "api"),
    _cause(r"429|RateLimitError|rate.?limit|too many requests|resource.?exhausted",
           "the API's rate limit (429) did not lift", "api"),
    _cause(r"403|PermissionDeniedError|permission_(denied|error)|forbidden|not_allowed",
           "the API refused access (403)", "api"),
    _cause(r"404|\bNotFoundError|not_found|model.{0,80}(not found|does not exist|not supported)",
           "the API does not know the model, or the address (404)", "api"),
    _cause(r"413|request_too_large", "the request was too large for the API (413)", "agent"),
    _cause(r"408|504|524|timed? ?out|timeout", "the API did not answer in time", "api"),
    _cause(
        r"connection (error|refused|failed|reset|closed)|could not connect|unable to connect|sending request"
        r"|fetch failed|ENOTFOUND|ECONN|EAI_AGAIN|unreachable|cannot be reached|failed to resolve|socket hang up"
        r"|APIConnectionError|(socket|transport) (connection )?(was )?closed",
        "it could not reach the API", "api",
    ),
    _cause(
        r"json parse|JSONDecodeError|expecting (value|property)|stream (disconnected|closed|ended)|error decoding"
        r"|decoding response|malformed",
        "the API's answer made no sense", "api",
    ),
    _cause(r"5\d\d|overloaded|high demand|at capacity|internal.?server|service.?unavailable|bad.?gateway|api_error",
           "the API failed (5xx)", "api"),
    _cause(r"400|422|BadRequestError|invalid_request", "the API refused the request (400)", "unknown"),
)  # fmt: skip
"""Errors of the API, by status or by words."""

API_ERROR = re.compile(
    r"\bAPI.?Error|litellm|openai\.|anthropic\.|OpenAIException|AnthropicException|AI_APICallError|Provider\w{0,40}Error"
    r"|unexpected status|last status|got status|stream disconnected|Request rejected|Error code: [45]\d\d|turn\.failed"
    r"|(Authentication|RateLimit|APIConnection|InternalServer|ServiceUnavailable|BadRequest|PermissionDenied)Error"
    r"|talking to \w+ API|provider\.transport|chat completion|TerminalQuotaError|invalid_request_error|rate_limit_error"
    r"|(hit|reached) your .{0,30}limit|usage limit|credit balance|experiencing high demand|API key not valid",
    re.IGNORECASE,
)
"""Words that only an error of the LLM's API has."""
STATUS = re.compile(
    r"(?:status(?:[ _]?code)?|HTTP(?:/[\d.]+)?|error(?: code)?|code|rejected|API Error)\W{0,4}([45]\d\d)\b"
    r"|\b([45]\d\d) (?:\{|[A-Z][a-z]+)",
    re.IGNORECASE,
)
WRAPPER = re.compile(r"CalledProcessError|ChildFailedError|ELIFECYCLE|returned non-zero|exited with (code|status)")
"""Errors that only say that another program has failed."""
ERROR_LINE = re.compile(
    r"\b\w*(Error|Exception|Exit|Interrupt)\b ?:|^\s*(fatal|error|panic|thread '.*' panicked)\b", re.I
)
UNANSWERED = {502, 504}
"""What the relay answers in place of an API that it cannot reach, or that takes too long."""
NOT_FOUND = 404
UNRECORDED = 507
"""What the relay answers while it cannot write down the requests, because of a full disk."""
REDIRECTED = 421
"""What the relay answers in place of an API that redirects it to another address."""
SIGNALS = {
    9: "it was killed; the usual cause is that memory ran out",
    4: "it does not run on this processor (illegal instruction)",
    6: "it was aborted",
    11: "it crashed (segmentation fault)",
}


def ending(
    reason: str,
    exit_code: int | None,
    account: Account | None = None,
    log: Sequence[str] = (),
    failed: Sequence[FailedRequest] | None = None,
    exits: dict[int, str] | None = None,
) -> Ending:
    """Returns how an attempt ended.

    Args:
        reason: What the pipeline saw: finished (exit status 0), crashed or deadline.
        exit_code: The exit status; a negative number is the signal that ended it.
        account: What its transcript says; None for agents without one.
        log: The last lines that it printed to people.
        failed: The requests to its LLM that failed since the last one that was answered; None if they are not known.
        exits: What its exit statuses mean, by its definition.
    """
    if reason == "deadline":
        return _at_deadline(failed or ())
    told = account or Account()
    if exit_code == 0 and not told.failure and told.has_acted:
        return Ending("finished")
    if told.is_done and not told.failure and not failed and exit_code in range(1, 126):
        return Ending("finished", f"its work was complete, although its exit status was {exit_code}")
    said = told.failure or told.stray or _error_line(log)
    found = _of_text(said, account, failed)
    if not told.failure and found is None and (line := _error_line(log)) and line != said:
        said, found = line, _of_text(line, account, failed)
    if found is not None and failed is not None and not failed:
        if found.responsible == "api":
            why = f"it says that {found.why}, but the record of its requests does not show it"
            found = found._replace(why=why, responsible="unknown")
        elif found.responsible == "machine" and account is not None and told.has_acted and not told.failure:
            found = found._replace(responsible="unknown")  # its LLM was answered, and it can print what it likes
    if found is not None:
        found = _unless_made_up(found, failed or ())
        return Ending(found.reason, f"{found.why}{_shown(said)}", found.responsible)
    return Ending("crashed", f"{_by_exit(exit_code, exits or {}, told.has_acted)}{_shown(said)}", "unknown")


def _at_deadline(failed: Sequence[FailedRequest]) -> Ending:
    if len(failed) < MANY_FAILURES:
        return Ending("deadline")
    cause = _unless_made_up(_of_request(failed[-1], ""), failed)
    return Ending("deadline", f"{cause.why}, {len(failed)} times in a row", cause.responsible)


def _unless_made_up(cause: Cause, failed: Sequence[FailedRequest]) -> Cause:
    is_doubtful = cause.responsible != "agent" and failed and failed[-1].may_be_made_up
    return cause._replace(responsible="unknown") if is_doubtful else cause


def _of_text(said: str, account: Account | None, failed: Sequence[FailedRequest] | None) -> Cause | None:
    """Returns the cause: the rules of the agent system itself, then the API as recorded, then this machine, then the
    API by its words. An agent without a transcript is no agent system: it has no such rules."""
    told = account or Account()
    is_api = bool(API_ERROR.search(said))
    if told.failure and (own := _first(OWN_LIMITS, said)):
        return own
    if told.status:
        return _of_status(told.status, said)
    local = None if is_api and failed else _first(LOCAL, said)
    if local is not None:
        return local
    if failed:
        return _of_request(failed[-1], said)
    if not (is_api or told.failure):
        return _first(OWN_LIMITS, said) if account is not None else None
    status = STATUS.search(said) if is_api else None
    return _of_status(int(status[1] or status[2]), said) if status else _of_words(said)


def _of_request(request: FailedRequest, said: str) -> Cause:
    if not request.refused:
        return _of_status(request.status, said)
    if request.status in UNANSWERED:
        return _of_words(request.refused) or _of_status(request.status, "")
    responsible: Responsible = "machine" if request.status in {UNRECORDED, REDIRECTED} else "agent"
    return _cause("", f"a2rl did not forward its request: {request.refused}", responsible)


def _of_status(status: int, said: str) -> Cause:
    named = _first(API_WORDS, said) or _first(API_CAUSES, str(status))
    return named or _cause("", f"the API refused the request ({status})", "unknown")


def _of_words(said: str) -> Cause | None:
    """Returns the cause that the words of an error of the API name; numbers do not count here."""
    return _first(API_WORDS, said) or _first(API_CAUSES, re.sub(r"\d", "", said))


def _first(causes: Sequence[Cause], words: str) -> Cause | None:
    return next((cause for cause in causes if cause.words.search(words)), None)


def _error_line(log: Sequence[str]) -> str:
    """Returns the last line that names an error: what was printed before it may have been mended."""
    for line in reversed(log[-MAX_LINES:]):
        if not WRAPPER.search(line) and (ERROR_LINE.search(line) or _first(LOCAL, line) or API_ERROR.search(line)):
            return line.strip()
    return log[-1].strip() if log else ""


def _by_exit(exit_code: int | None, exits: dict[int, str], has_acted: bool) -> str:
    if exit_code in exits:
        return exits[exit_code]
    signal = -exit_code if exit_code and exit_code < 0 else (exit_code or 0) - 128
    if signal in SIGNALS:
        return SIGNALS[signal]
    if not has_acted:
        return f"it ended with exit status {exit_code} and had done nothing: its LLM said nothing and used no tool"
    return f"it ended with exit status {exit_code}"


def _shown(words: str) -> str:
    said = printable(" ".join(words.split())[-MAX_WORDS:], MAX_WORDS)
    return f": {said}" if said else ""
