"""The meanings of the letters of the update rules."""

LETTERS = (
    (r"\blocal\(", "local(·): the client's own steps, x ← x - lr · direction, batch by batch"),
    (r"\bF_i", "F<sub>i</sub>: the loss of client i on a batch"),
    (r"\bW\[", "W<sub>ij</sub>: the weight that client i gives to the message of client j in this round's graph"),
    (
        r"\bP\[",
        "P<sub>ij</sub>: the weight of the message of j to i, chosen by the sender; columns sum to 1",
    ),
    (r"\bS\b", "S: the clients that take part in the round"),
    (r"sum_S q_i", "q<sub>i</sub>: the weight of a client, by its size or equal for all; they sum to 1"),
    (r"sum_S w_i", "w<sub>i</sub>: the weight of a client, by its size or equal for all; they sum to 1"),
    (r"\bu_i.*\bv_i|\bv_i.*\bu_i", "u: the shared part of a model; v: the personal part"),
)
