"""What a look inside an image has found out about one platform that it claims."""

import msgspec

from extender.images.platform import Platform
from extender.images.platform_states import RUNNING, FalselyClaimed, PlatformState


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a platform, and what it cost to find out.

    `program` and `detail` are as in `FalselyClaimed`; of a platform that stays *claimed* `detail` is why, one short
    sentence. `requests` counts those for manifests, configurations and parts of layers. `read_bytes` are those of
    layers that were read, of `layer_bytes` that there are.
    """

    platform: Platform
    state: PlatformState
    program: str = ""
    detail: str = ""
    requests: int = 0
    read_bytes: int = 0
    layer_bytes: int = 0

    @property
    def falsely_claimed(self) -> FalselyClaimed | None:
        """The platform as one on which the image does not run; None if it does, as far as is known."""
        if self.state in RUNNING:
            return None
        return FalselyClaimed(self.platform, self.state, self.program, self.detail)
