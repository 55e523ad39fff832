"""``coterie certs``: a federation's authority and its members' certificates. What it needs is imported when it runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.spec import counted
from ..common.options import RowsFormat
from ..common.typed import Commands

if TYPE_CHECKING:
    from ...net.certificates.validity import Standing

MOST_DAYS = 36_500
SOON = 30  # days in which somebody should renew a certificate

certs = Commands(
    help="Certificates of real peers: make an authority, certify members, revoke, show.", no_args_is_help=True
)

Folder = Annotated[Path, typer.Option(help="The folder of the authority's files.")]
Member = Annotated[str, typer.Argument(help="A member: letters and digits, with - or . between them.")]


@certs.command(name="init")
def init_authority(
    folder: Folder = Path("certs"),
    days: Annotated[int, typer.Option(help="How long the authority is valid.", min=1, max=MOST_DAYS)] = 3650,
) -> None:
    """Make a federation's authority and its empty list of revoked certificates, once."""
    from ...net.certificates.authority import Authority

    made = Authority.create(folder, days)
    print(f"wrote {folder / 'authority.pem'} and {folder / 'revoked.pem'}: hand these two to all members")
    print(f"wrote {folder / 'authority.key'}: hand this one to nobody; whoever has it can certify anyone")
    print(f"the authority is valid until {made.certificate.not_valid_after_utc:%Y-%m-%d}")
    print(f"next: coterie certs issue NAME{_typed(folder)}, for each member")


@certs.command()
def issue(
    name: Member,
    folder: Folder = Path("certs"),
    days: Annotated[int, typer.Option(help="How long the certificate is valid.", min=1, max=MOST_DAYS)] = 365,
    renew: Annotated[
        bool, typer.Option("--renew", help="Another certificate for the key that the member has; the old one stays.")
    ] = False,
) -> None:
    """Certify a member: a certificate and, unless it is renewed, a new key."""
    from ...net.certificates.authority import Authority
    from ...net.certificates.validity import standings

    certificate, *key = Authority.load(folder).issue(name, days, renew)
    until = max(one.valid_until for one in standings(folder) if one.name == name)
    wrote = " and ".join(map(str, (certificate, *key)))
    those = "these two" if key else "it"
    print(f"wrote {wrote}: hand {those} to {name} alone, beside authority.pem and revoked.pem")
    if renew:
        print(f"{name} keeps its key, and takes the new certificate when it starts the next time")
    print(f"the certificate is valid until {until:%Y-%m-%d}")


@certs.command()
def revoke(name: Member, folder: Folder = Path("certs")) -> None:
    """Revoke all certificates of a member; who has the new list refuses them at the next request."""
    from ...net.certificates.authority import Authority

    gone = Authority.load(folder).revoke(name)
    print(f"revoked {counted(len(gone), 'certificate')} of {name}")
    print(f"wrote {folder / 'revoked.pem'}: hand it to all members now, who need not restart")


@certs.command()
def show(folder: Folder = Path("certs"), format: RowsFormat = "table") -> None:
    """Show the authority and all certificates: since when, until when, days left, revoked, fingerprint."""
    from ...net.certificates.validity import read_authority, standing, standings
    from ..common.console import table, wide_console
    from ..common.rows_format import for_programs, print_rows

    programs = for_programs(format)
    authority, members = standing(read_authority(folder), {}), standings(folder)
    rows = [_row(one) for one in (authority, *members)]
    if programs:
        print_rows(format, rows)
        return
    shown = table("name", "valid from", "valid until", ">days left", "revoked", "serial", "fingerprint (SHA-256)")
    for row in rows:
        shown.add_row(*("" if value is None else str(value) for value in row.values()))
    wide_console().print(shown)
    latest = {one.name: one for one in members if one.revoked is None}  # sorted by age: the last of a name remains
    for one in (authority, *latest.values()):
        if one.days_left < SOON:
            print(f"{one.name} has {_left(one.days_left)}: {_renewal(one is authority, one.name, folder)}")


def _row(one: "Standing") -> dict[str, Any]:
    return {
        "name": one.name,
        "valid_from": f"{one.valid_from:%Y-%m-%d}",
        "valid_until": f"{one.valid_until:%Y-%m-%d}",
        "days_left": one.days_left,
        "revoked": one.revoked and f"{one.revoked:%Y-%m-%d}",
        "serial": f"{one.serial:x}",
        "fingerprint": one.fingerprint,
    }


def _left(days: int) -> str:
    return f"{counted(days, 'day')} left" if days >= 0 else "expired"


def _renewal(authority: bool, name: str, folder: Path) -> str:
    from ...net.certificates.validity import NEW_AUTHORITY

    return NEW_AUTHORITY if authority else f"coterie certs issue {name} --renew{_typed(folder)}"


def _typed(folder: Path) -> str:
    return "" if folder == Path("certs") else f" --folder {folder}"
