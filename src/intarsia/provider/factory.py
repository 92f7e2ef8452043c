# SPDX-License-Identifier: Apache-2.0
"""What the library asks of Python: factories of the provider, and what makes it for a session."""

from __future__ import annotations

import ctypes
import logging
from ctypes import c_void_p
from importlib.metadata import version

from intarsia.provider.abi import (
    CPU_DEVICE,
    EP_FUNCTIONS,
    FACTORY_FUNCTIONS,
    OrtApi,
)
from intarsia.provider.callbacks import (
    address_of_function,
    allocate,
    make_table,
    owner_of,
    release_table,
    returning_status,
    say,
)
from intarsia.provider.library import function_address
from intarsia.provider.options import NAME, ProviderOptions
from intarsia.provider.provider import SessionProvider

logger = logging.getLogger("intarsia")

_VENDOR = "Intarsia"
_VENDOR_ID = 0
"""It has none: it makes no devices."""


class ProviderFactory:
    """Makes the provider for sessions.

    Args:
        api: ONNX Runtime's functions.

    Attributes:
        api: The same.
        address: Of the table that ONNX Runtime calls.
    """

    def __init__(self, api: OrtApi) -> None:
        self.api = api
        self.address = make_table(FACTORY_FUNCTIONS, _FACTORY, self)

    def list_devices(self, devices: int, count: int, made: int, most: int, made_count: int) -> None:
        """Offer this machine's CPU: what the provider is given and returns is in its memory."""
        number = 0
        for i in range(count):
            device = c_void_p.from_address(devices + 8 * i).value
            if number == most or self.api.call("HardwareDevice_Type", device) != CPU_DEVICE:
                continue
            one = self.api.pointer("CreateEpDevice", self.address, device, None, None)
            c_void_p.from_address(made + 8 * number).value = one
            number += 1
        ctypes.c_size_t.from_address(made_count).value = number

    def create(
        self, devices: int, metadata: int, count: int, options: int, log: int, made: int
    ) -> None:
        """Make the provider for a session."""
        del devices, metadata, count, log
        provider = SessionProvider(self.api, ProviderOptions.read(self.api.entries(options)))
        c_void_p.from_address(made).value = make_table(EP_FUNCTIONS, _PROVIDER, provider)


def create_factories(name: int, base: int, log: int, factories: int, most: int, count: int) -> int:
    """Make the factory of the provider; the library calls this for ONNX Runtime.

    Args:
        name: The address of the name that the library is registered by.
        base: That of OrtApiBase.
        log: That of ONNX Runtime's log.
        factories: Where its address goes.
        most: How many there is room for.
        count: Where their number goes.

    Returns:
        The address of a status; 0 if nothing is wrong.
    """
    del name, log, most  # there is room for several
    from intarsia.provider.abi import make_status

    try:
        factory = ProviderFactory(OrtApi.of(base))
        c_void_p.from_address(factories).value = factory.address
        ctypes.c_size_t.from_address(count).value = 1
    except BaseException as error:
        return make_status(base, say(error))
    return 0


def _keep_text(text: str) -> int:
    """Return the address of a text that stays until the process ends."""
    data = text.encode() + b"\0"
    address = allocate(len(data))
    ctypes.memmove(address, data, len(data))
    return address


def _text_function(text: str) -> int:
    address = _keep_text(text)
    return address_of_function(lambda table: address, c_void_p, c_void_p)


def _set_null(table: int, *arguments: int) -> int:
    """Say that there is none of our own: the last parameter is where that goes."""
    c_void_p.from_address(arguments[-1]).value = None
    return 0


_STATUS, _ADDRESS = c_void_p, c_void_p

_FACTORY = {
    "GetName": _text_function(NAME),
    "GetVendor": _text_function(_VENDOR),
    "GetVersion": _text_function(version("intarsia")),
    "GetVendorId": address_of_function(lambda table: _VENDOR_ID, ctypes.c_uint32, c_void_p),
    "GetSupportedDevices": returning_status(ProviderFactory.list_devices, 6),
    "CreateEp": returning_status(ProviderFactory.create, 7),
    "ReleaseEp": address_of_function(
        lambda table, provider: release_table(provider), None, c_void_p, c_void_p
    ),
    "CreateAllocator": address_of_function(_set_null, _STATUS, *([_ADDRESS] * 4)),
    "ReleaseAllocator": function_address("intarsia_nothing"),
    "CreateDataTransfer": address_of_function(_set_null, _STATUS, *([_ADDRESS] * 2)),
    "IsStreamAware": function_address("intarsia_nothing"),
}
_PROVIDER = {
    "GetName": _FACTORY["GetName"],
    "GetCapability": returning_status(SessionProvider.find_capability, 3),
    "Compile": returning_status(SessionProvider.compile, 6),
    "ReleaseNodeComputeInfos": address_of_function(
        lambda table, infos, count: owner_of(table).release(infos, count or 0),
        None,
        *([_ADDRESS] * 3),
    ),
}
