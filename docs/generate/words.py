"""What the letters of the recurrences mean, in a few words each."""

LETTERS = (
    (r"\blocal\(", "local(·): the client's own steps, x ← x - lr · direction, batch by batch"),
    (r"\bF_i", "F<sub>i</sub>: the loss of client i on a batch"),
    (r"\bW\[", "W<sub>ij</sub>: the weight client i gives to what client j sends, in this round's graph"),
    (r"\bP\[", "P<sub>ij</sub>: the weight of what j sends to i, chosen by the sender, so that columns sum to 1"),
    (r"\bS\b", "S: the clients that take part in the round"),
    (r"sum_S q_i", "q<sub>i</sub>: how much a client counts, by its size or equally; they sum to 1"),
    (r"sum_S w_i", "w<sub>i</sub>: how much a client counts, by its size or equally; they sum to 1"),
    (r"\bu_i.*\bv_i|\bv_i.*\bu_i", "u: the shared part of a model; v: the personal part"),
)
