"""The kinds of value a setting may have, with faults said in the file's own words."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator
from pydantic_core import PydanticCustomError

DAY_S = 86_400.0

T = TypeVar("T")


class Spec(BaseModel):
    """A mapping of the file: immutable, unknown keys refused, a key without a value counts as absent."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True, validate_default=False
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: item for key, item in value.items() if item is not None or key not in cls.model_fields}


def fault(message: str) -> PydanticCustomError:
    """A fault in our own words, to raise from a validator."""
    return PydanticCustomError("fault", "{message}", {"message": message})


def _not_empty(values: tuple[T, ...]) -> tuple[T, ...]:
    if not values:
        raise fault("must have at least one entry")
    return values


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise fault("must be a number")
    return value


def _boolean(value: object) -> object:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:  # from ${ENV}
        return value.lower() == "true"
    raise fault("must be true or false")


def _host(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:%-]{1,253}", text):
        raise fault("must be a host name or an address, without port")
    return text


def _safe_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", text):
        raise fault("must be 1 to 64 letters, digits, '.', '_' or '-', starting with a letter or digit")
    return text


def _model_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,127}", text):
        raise fault("must be 1 to 128 letters, digits or any of . _ - / : @ +, starting with a letter or digit")
    return text


def _upstream_name(text: str) -> str:
    if not text.isprintable() or not text.strip() or len(text) > 256:
        raise fault("must be 1 to 256 printable characters")
    return text


def origin_of(text: str, what: str = "a URL") -> str:
    """``text`` as ``scheme://host[:port]``: lower case, no default port, no trailing slash.

    Raises a fault that says which part of the URL has no place in the setting.
    """
    if not text.isascii() or not text.isprintable() or " " in text or "\\" in text:
        raise fault(f"must be {what} without blanks or special characters")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise fault(f"is not {what} that can be used") from None
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise fault(f"must be {what} like http://host:8000")
    if "@" in parts.netloc:
        raise fault("must hold no user name or password")
    if parts.path not in {"", "/"}:
        raise fault("must end after host and port (no path such as /v1)")
    if "?" in text or "#" in text:
        raise fault("must hold no query and no fragment")
    name = f"[{host}]" if ":" in host else host
    default = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{name}" + (f":{port}" if port and port != default else "")


def _cors_origins(value: object) -> object:
    return ["*"] if value == "*" else value


def _cors_origin(text: str) -> str:
    return text if text == "*" else origin_of(text, "an origin")


def _secret(value: object) -> object:
    """An empty string is no secret: what ``"${NAME:-}"`` gives while ``NAME`` is unset."""
    return None if value == "" else value


def _header_safe(secret: SecretStr) -> SecretStr:
    text = secret.get_secret_value()
    if not text.isascii() or not text.isprintable() or " " in text or len(text) > 4096:
        raise fault("must be printable ASCII without blanks (it travels in a header)")
    return secret


def _admin_length(secret: SecretStr) -> SecretStr:
    if len(secret.get_secret_value()) < 16:
        raise fault("must have at least 16 characters")
    return secret


def _sha256(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        raise fault("must be 64 hex digits (`gateway keys new` prints them)")
    return text.lower()


def _expiry(value: object) -> object:
    """A day lasts to its end in UTC; a time must say its zone, or it would mean another moment on another machine."""
    wanted = "must be a date (2027-01-31) or a date and time with zone (2027-01-31T18:00:00+02:00)"
    if isinstance(value, datetime):
        return value
    if not isinstance(value, str):
        raise fault(wanted)
    try:
        if len(value) <= 10:
            return datetime.combine(date.fromisoformat(value), time(23, 59, 59), UTC)
        moment = datetime.fromisoformat(value)
    except ValueError:
        raise fault(wanted) from None
    if moment.tzinfo is None:
        raise fault("needs a zone, e.g. 2027-01-31T18:00:00Z")
    return moment


NOT_EMPTY = AfterValidator(_not_empty)  # unlike min_length it is silent while an entry is at fault
_Whole = Annotated[int, BeforeValidator(_no_bool)]
_Real = Annotated[float, BeforeValidator(_no_bool), Field(allow_inf_nan=False)]

Flag = Annotated[bool, BeforeValidator(_boolean)]
Count = Annotated[_Whole, Field(ge=1, le=2**53)]
CountOrZero = Annotated[_Whole, Field(ge=0, le=2**53)]
Port = Annotated[_Whole, Field(ge=0, le=65_535)]
Cap = Annotated[_Whole, Field(ge=1, le=4_096)]
Seconds = Annotated[_Real, Field(gt=0, le=DAY_S)]
SecondsOrZero = Annotated[_Real, Field(ge=0, le=DAY_S)]
PositiveReal = Annotated[_Real, Field(gt=0, le=1e9)]
Host = Annotated[str, AfterValidator(_host)]
Name = Annotated[str, AfterValidator(_safe_name)]
ModelName = Annotated[str, AfterValidator(_model_name)]
UpstreamName = Annotated[str, AfterValidator(_upstream_name)]
ReplicaUrl = Annotated[str, AfterValidator(origin_of)]
CorsOrigins = Annotated[tuple[Annotated[str, AfterValidator(_cors_origin)], ...], BeforeValidator(_cors_origins)]
Secret = Annotated[Annotated[SecretStr, AfterValidator(_header_safe)] | None, BeforeValidator(_secret)]
AdminSecret = Annotated[
    Annotated[SecretStr, AfterValidator(_header_safe), AfterValidator(_admin_length)] | None, BeforeValidator(_secret)
]
Sha256 = Annotated[str, AfterValidator(_sha256)]
Expiry = Annotated[datetime, BeforeValidator(_expiry)]
