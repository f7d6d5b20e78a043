import unittest

from meterbus.crc import crc16
from meterbus.frames import Frame, FrameError, answer, question, refusal, values_of


class FramesTest(unittest.TestCase):
    def test_the_check_of_a_known_text(self):
        self.assertEqual(crc16(b"123456789"), 0x4B37)

    def test_a_frame_survives_the_line(self):
        for frame in (question(11, 1, 0x0100, 2), Frame(200, 255, 3, bytes(64)), Frame(1, 0, 3)):
            with self.subTest(frame=frame):
                self.assertEqual(Frame.decode(frame.encode()), frame)

    def test_an_answer_repeats_address_and_tag(self):
        asked = question(42, 7, 0x0010)
        came = answer(asked, [2342])
        self.assertEqual((came.address, came.tag, values_of(came)), (42, 7, [2342]))

    def test_a_refusal_is_told_from_an_answer(self):
        self.assertTrue(refusal(question(42, 7, 0x0999), 2).is_refusal)
        self.assertFalse(answer(question(42, 7, 0x0010), [1]).is_refusal)

    def test_broken_bytes_are_no_frame(self):
        good = question(11, 1, 0x0100).encode()
        for data in (b"", good[:-1], good[:3] + b"\xff" + good[4:], good + b"\0"):
            with self.subTest(data=data), self.assertRaises(FrameError):
                Frame.decode(data)
