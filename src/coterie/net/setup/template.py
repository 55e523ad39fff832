"""The commented peer.toml that ``coterie peer init`` writes."""

TEMPLATE = """\
# One participant of a federation. Paths are relative to this file.
# Certificates come from coterie certs; coterie peer check --config FILE says what is wrong before anything starts.

[federation]                  # the same at every member: whoever differs is told where, and refused
id = "heart-2026"
method = "dfedalt"            # one between peers (coterie list); or module:function, with --trust module:function
rounds = 50
seed = 0
model = "mlp:width=64"        # coterie list has them; or module:function, with --trust
classes = 2                   # how many there are at all members, as one may lack some; leave it out where the
                              # targets are numbers; for folders of images their names: ["healthy", "ill"]
# loss = "cross-entropy"      # as --loss of coterie run
# metric = ["accuracy"]       # as --metric; the first one decides
# columns = "columns.json"    # for tables: what all encode their columns with. Each member runs
#                               coterie peer columns csv:mine.csv,target=y --out mine.json
#                             # and one of you puts them together, for all:
#                               coterie peer columns alpha.json beta.json --out columns.json
# mean = [0.5]                # for images of bytes, one number per channel: (x / 255 - mean) / std; else 0.5 and 0.5
# std = [0.5]

[federation.settings]         # of the method, as --set; coterie list dfedalt shows them
lr = 0.02
personal_lr = 0.02
epochs = 1
batch_size = 16
topology = "ring"             # who hears whom: full, ring, exponential, random:2, ...

[federation.members]          # where each is reached; the order numbers the clients
alpha = "10.0.0.1:7443"
beta = "10.0.0.2:7443"
gamma = "10.0.0.3:7443"

[peer]                        # this member alone
name = "alpha"
folder = "alpha"              # its own folder: models, numbers, what has arrived; nobody else reads it
data = "npz:alpha.npz"        # or csv:alpha.csv,target=y; a folder with train/CLASS and test/CLASS; module:function
# listen = "0.0.0.0:7443"     # by default the port of its own address above, on all interfaces
# metrics = "127.0.0.1:9464"  # numbers for Prometheus, for this machine alone unless another address is named
# deadline = "auto"           # how long a round waits for neighbors; "30s" waits no longer
# wait = "5m"                 # for the others before the first round, which then begins with those who are there
# evaluate_every = 1          # rounds between two evaluations on its own test samples
# validation = 0.2            # of its own training samples, kept out of training, to choose by
# select = "best-validation"  # the model it keeps: of its own best round on them; else of the last round
# patience = 10               # after so many evaluations in a row that were no better it does not train; it
                              # exchanges models until the last round, so the others lose nobody

[peer.certificates]
authority = "certs/authority.pem"
certificate = "certs/alpha.pem"
key = "certs/alpha.key"       # for alpha's eyes only
revoked = "certs/revoked.pem" # read again when it changes
"""
