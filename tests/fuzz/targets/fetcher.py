"""What a fetcher may say to the service: what is malformed or too long is refused, whatever it says."""

from extender.fetcher.messages import MOST_BYTES, Channel, Failed, FromFetcher, Pong, decode_from_fetcher, frame
from tests.fuzz.target import check_sentence


def fetcher_messages(data: bytes) -> None:
    """A message is refused, or is one that can be sent again, and an error of it or a figure can be used."""
    received = list[FromFetcher]()
    Channel(lambda message: received.append(decode_from_fetcher(message)), lambda: None).data_received(data)
    for answer in received:
        assert len(frame(answer)) <= MOST_BYTES + 4
        match answer:
            case Failed():
                check_sentence(answer.why[:1000])
            case Pong():
                assert all(value >= 0 for value in answer.counted.values())


TARGETS = (fetcher_messages,)
