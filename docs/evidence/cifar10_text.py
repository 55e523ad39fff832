"""What people wrote on the page of cifar10.py, around its tables."""

ABOUT = """# CIFAR-10 at the size of the papers

Made by [cifar10.py](cifar10.py), which says how: tables of the papers on CIFAR-10, run with all of their clients,
samples and local steps, on one H200, with products in bfloat16 and weights in single precision; seed 0 unless a row
says otherwise. Each table has the published numbers beside ours; below them are the claims of the papers that these
rows touch, and what the differences may come from.

![accuracy over rounds](cifar10.svg)

## Personal accuracy (dfedalt-t1, Table 1, case 2)

100 clients, ResNet-18 with GroupNorm, Dirichlet 0.3 for every client, as in the paper on DFedAlt. With a server ten
clients take part in each round. Curves, settings and versions (torch 2.11) are in [cifar10.json](cifar10.json).

"""
BETWEEN = """
"Difference" is ours minus published, in points. The published numbers are means of three seeds; ours is one seed, so a
difference below about half a point says nothing.

## Rounds until 80 % (dfedalt-t2, Table 2)

"""
CLAIMED = """
## What the papers claim

{rule}

With one seed nothing can hold by this rule: "not reproduced" then says that one run of each is not enough, and the
number beside it says which way these runs point. The numbers are by how many points the method is above the best of the
others, or how many rounds earlier it is, at least so many where the other was stopped or never got there. A run that
was stopped before its rounds were over has no final accuracy.

"""
# what could make our numbers of the first table other than the printed ones: detail, here, elsewhere, what it could do
CANDIDATES = (
    (
        "rate and momentum",
        "0.99 a round, 0.9",
        "momentum 0.9 for all in both papers; no decay in the first, 0.99 in the second (0.9 in its Table 8); "
        "DisPFL's script for this very cell (FedAvg, Ditto, Local): 0.998 a round and no momentum",
        "much: our FedAvg follows its rate, its mean model is at 38.1 % in round 100, where the rate is 0.037, and at "
        "72.7 % at the end, where it is 0.0007. With 0.998 and no momentum the mean model ends at 79.5 %, and after "
        "local training FedAvg has 84.2 %: further from the printed 80.02, not nearer. FedBABU rises from 75.7 to "
        "85.1 % with it, from 7.6 points below what is printed to 1.8 above it; FedPer falls from 86.4 to 85.9 % "
        "(84.06), and passes 80 % between rounds 251 and 300 instead of in 170 (262)",
    ),
    (
        "Ditto's epochs",
        "5 global and 5 personal, the pull a part of the gradient, lambda 0.75",
        "lambda 0.75 in both papers; 2 and 3 in DisPFL's script, the pull a step of its own, lambda 0.5",
        "much, for Ditto alone: half of the local steps. At full size it takes 14.8 points from Ditto: 66.5 %, 7.0 "
        "below what is printed, where ours as in the papers is 7.8 above it. With that script's rate and momentum "
        "besides it has 73.3 %: the printed number (73.51)",
    ),
    (
        "samples used again",
        "never",
        "DFedPGP's release deals a class again that has run out; DisPFL's does not",
        "little, in both directions: 47,561 different samples in place of 50,000 (seed 0), but easier tasks, as the "
        "largest class of a client has 45.7 % of its samples in place of 43.6 %",
    ),
    (
        "weight decay",
        "0.0005",
        '"a decay rate of 0.005" in both texts; 0.0005 in Table 8 of the second and in all code',
        "little: less than a point in the small runs; Table 8 speaks against it",
    ),
    (
        "which model of FedAvg",
        "each client's own, after its latest training",
        "the same in DisPFL's release, which tunes the last model for everybody once more, at the rate 0.1",
        "none, or ten points: after aggregation our FedAvg has 73 %",
    ),
    (
        "cohorts",
        "10 of 100, from our seed",
        "the same ten in round t for every method and seed",
        "none: a client takes part 36 to 65 times there, and trained 8.7 rounds before the end on average",
    ),
    (
        "the draw of the clients",
        "seed 0",
        "three seeds, spread 0.2",
        "none downward: the largest class of a client has 43.6, 47.5 and 44.0 % of its samples with seeds 0, 1 and 2, "
        "so that ours is the hardest",
    ),
    (
        "best or last round",
        "best",
        "best",
        "none: our best rounds are at most 0.2 points above the last ones",
    ),
    (
        "tests, crop and flip, clipping at 10, batches of 128, new momentum in every round",
        "as in the releases",
        "not stated in the papers",
        "none, unless something else was run than what was released",
    ),
    ("precision", "products in bfloat16", "not stated", "little; not tried"),
)
DIFFERS = """
## What the differences may come from

FedRep agrees (84.8 against 84.5), and DFedAlt passes 80 % in round 139 or, in a second run, between rounds 141 and 150
(131). FedAvg, measured after local training, FedPer and Fed-RoD end two to three points above what is printed, Ditto
eight points above it, FedBABU eight below it. With the settings of DisPFL's script, the code that the baselines come
from, Ditto agrees (73.3 against 73.5), and with its rate and momentum FedBABU and FedPer end 1.8 points above what is
printed and pass 80 % where it is printed. The paper on DFedPGP prints the same numbers for FedPer, FedRep, FedBABU and
Ditto, and 79.66 for FedAvg, so what it adds about the set-up is about the same runs. These details were compared with
both papers and with the code that they build on (the releases of DisPFL and DFedPGP); code of these baselines by the
authors is not public.

{candidates}
What a detail did with a fifth of CIFAR-10, small networks and a tenth of the rounds, on a CPU, one seed
([cifar10_small.py](cifar10_small.py)): this says which way it points, not how far it goes at full size. In brackets is
the difference to the same run without the change; one or two points may be chance.

{small}
Dealing samples again therefore does not look like the reason: personal accuracy rose in all four runs with it,
probably because the tasks get easier. A weight decay of 0.005 lowers FedAvg by less than a point. The rate and momentum
of DisPFL's script, changed together, lower FedAvg most and FedPer less, as in the printed table, but they lower FedRep
as well, which agrees as it is; and in so few rounds small steps count for more than in 500. At full size they do the
opposite: FedAvg with `momentum=0 lr_decay=0.998` ends at 84.2 % after local training, 4.1 points above what is printed
and 0.8 above our row with momentum. What is near to the printed number is its model *after aggregation*, before anybody
trains it: 79.2 % on the clients' own test samples (73 % with momentum). So the printed FedAvg may be the global model
of that script, read without local training; one seed, and a reading that no text confirms.

**FedBABU's difference comes from rate and momentum.** With `momentum=0 lr_decay=0.998`, as in DisPFL's script and
against both texts, it ends at 85.1 % instead of 75.7 % (published 83.3), and passes 80 % between rounds 251 and 300
(published 270). Its body alone learns before fine-tuning, and the mean model has 71 % in round 300, where it has 54 %
with ours. Which of the two settings does it was not tried at this size. Fine-tuning had momentum 0.9 in all these runs
(`finetune_momentum=0.9`).

**Ditto's printed number is that of DisPFL's script**: with its epochs, lambda and pull *and* its rate and momentum our
run ends at 73.3 % (published 73.5), and its curve still rises by 0.3 points in ten rounds. As the papers describe it,
it has 81.3 %; with the script's epochs, lambda and pull, but our rate and momentum, 66.5 %. `--reading code` has all of
it, and besides that the partition of DFedPGP's release, without which these runs were made. In the small runs most of
Ditto's fall came with the pull as a step of its own.

**So the printed rows of the baselines look like runs with that script's rate and momentum**, 0.998 a round and none,
against the texts of both papers (Ditto: with all of its settings):

{script}
Three of four rows are nearer to it in both columns. FedAvg, after local training, is not; its model *after aggregation*
is (79.2 %, 80 % never reached). The last 1.8 points of FedPer and FedBABU would be gone if they, too, were read after
the latest local training of each client, as DisPFL's release reads FedAvg (84.2 and 83.6 %); but that was looked for
after the fact, and then both pass 80 % between rounds 301 and 350, later than printed. FedRep agrees with our rate as
it is; FedRep and Fed-RoD were not tried with the script's at full size. One seed each.

* **FedHM** (002) ends at 90.0 %, 6.7 points *above* the 83.3 % that the paper prints, and 2.4 points behind FedLMT; the
  paper has it 7.7 points behind. FedAvg, FedLMT and FedRolex (93.1, 92.5 and 91.2 %) are ahead of it, as printed;
  HeteroFL (88.8 %) is not, which is printed 1.7 points ahead. What it sends and computes agrees within a percent
  (121.8 of 122.6 thousand million parameters; it depends on who was drawn). On all test samples its model has 90.2 %.
  It was run in three sittings on two machines, with `--for` and `--resume`. What may make it worse in the paper is the
  decomposition: the one in 002's release, as pFedLMT uses it there, does not approximate the weights that it is given
  (a kernel of full rank comes back with an error of 1.3 times its size). FedHM, whose code is not in that release,
  decomposes in every round. With a fifth of the data, below, that decomposition takes 15 points from it, and nothing
  else that was tried takes more than one: the fewer whole layers and the Frobenius decay of FedHM's own release, or a
  fifth of the training samples held back. At full size it was not tried.
* **FedLMT, FedAvg, FedRolex and HeteroFL** (002, 2,000 rounds each, one seed) end 1.4, 1.2, 2.1 and 3.8 points above
  what is printed, in the printed order among themselves. What they send and compute agrees with the paper to the last
  printed digit for FedLMT and FedAvg; for FedRolex and HeteroFL it depends on who was drawn. Three details may raise
  all four. The text says that a fifth of the training data was held back for tuning; the released code, which we
  follow, holds nothing back. The released code deals the test samples of a class by the draws of the training set; here
  each client's test samples follow its own training samples. Batch statistics in evaluation are taken over a client's
  whole test set here and over batches of 100 there. Of HeteroFL's further 2.5 points we know no cause: scaler, masked
  loss and static statistics are off, as in the released code for this table; a client keeps its width for the whole run
  here, and the paper does not say whether it does there. None of these details was tried at this size; some were tried
  at a smaller one, below.
* Which details move the methods of that table, with a fifth of CIFAR-10, a network of a quarter of the widths and 150
  rounds, on a CPU, one seed. "Personal" is the common model on each client's own test samples, as in the table above:

{capacities}
A fifth of the samples held back changes at most two points here, in both directions; but in so few rounds nothing is
learned by heart yet, so this says little about 2,000. Test samples dealt as in the released code change little, client
by client; the accuracy on all samples falls with them, probably because batch normalization sees other samples beside
each.

* On **all** test samples, not client by client, the models of FedLMT, FedAvg, FedRolex and HeteroFL have 90.6, 92.3,
  89.9 and 89.7 %. So FedRolex is ahead of HeteroFL by 2.3 points client by client, and by 0.2 on all samples together:
  the two differ in whose samples batch normalization takes its statistics over.
* FedAvg and HeteroFL of that table ran at the same time on one GPU, so their seconds are no measurement of speed;
  FedLMT ran alone (454 s in all, of which 73 s until the end of the first round), and so did FedRolex (384 s and 47 s).
* **Ditto** as the papers describe it: our personal models reach 81.3 %, our *global* model ends at 73.5 %. That this is
  also what the paper prints for Ditto is a coincidence, if the printed number is that of DisPFL's script (above).
* **Fed-RoD passes 80 % between rounds 121 and 130, before DFedAlt (139)**, with one seed each; the paper has DFedAlt
  (131) before it (170). A round of Fed-RoD trains ten clients, a round of DFedAlt all hundred. The last column has
  Fed-RoD's generic model: trained with the balanced loss it ends at 82.1 %, where FedAvg's model is at 72.7 %. The code
  of Fed-RoD is not released; how its hypernetwork and its personal heads work together is our reading.
* **FedBABU falls short by 7.6 points** with the rate of the other rows, and by 6.0 where the rate is divided by 10 at a
  half and three quarters of the rounds, as in its released code, instead of multiplied by 0.99 in each: the row
  "stepped rate". The rate of its fine-tuning, which is not printed, does not look like the reason: the last model of
  that run reaches 77.3 % with ours (0.001), but 74.9 % with 0.01 and 40.0 % with 0.1 (`finetune_rates` in the JSON;
  `--set finetune_lr=0.01 --evaluate-every 500` repeats one). Its released code has no weight decay, ours the 0.0005 of
  all methods here; in the small runs that makes no difference.
* **DFedAlt** ran twice with the same seed. One run was stopped after 309 of 500 rounds, at 84.4 % in round 300; it says
  nothing about the published 86.5 %. The other was evaluated in every round and was stopped after 150, at 80.4 %.
* **DFedSalt trains at the printed radius of 0.7 with adaptive SAM, and only with it.** With plain SAM, which is the
  printed formula, the run stayed at 45 % from round 60 on. With plain SAM and a radius of 0.05 it had 66.2 % in round
  70, where DFedAlt had 72.3 %. With adaptive SAM and 0.7 it has 69.7 % in round 70, 80.3 % in round 140 (DFedAlt:
  80.0 %) and 83.7 % in round 170 (81.8 %), where it was stopped. It passes 80 % between rounds 131 and 140; the paper
  prints 160. Its worst client has 66.7 % in round 170 (DFedAlt: 64.4 %). So the gain that the paper prints (1.2
  points after 500 rounds) shows here from round 140 on. One seed each.
* **DFedAvgM** was stopped after 150 of 500 rounds, at 62.9 %; that says nothing about the published 82.6 %, nor about
  round 354, in which it passes 80 % in the paper. DFedAlt has 80.4 % in round 150 of its first run and was ahead in
  every round that was looked at, so in these two runs it passes 80 % first, as in the paper; with one seed each the
  ordering is *not reproduced* by our rule, and nothing contradicts it. The lead depends on where one measures: it is
  17 points after aggregation, but after local training, just before the models of that round are mixed, the two have
  74.3 % and 72.4 %. Mixing then takes 10 points from DFedAvgM and adds 6 to DFedAlt, whose heads are not mixed. Both
  had the same rate in the same round. This is its second run with that seed, by programs that add in another order:
  in rounds 10 to 140, every tenth, the two are up to 2.4 points apart, so that a smaller difference between two runs
  says nothing.
* **DisPFL** was stopped after 150 of 500 rounds, at 74.6 %; that says nothing about the published 82.7 %, nor about
  round 307, in which it passes 80 % in the paper. It is behind DFedAlt and ahead of DFedAvgM in every round that was
  looked at, as in the paper's table; one seed each. Mixing takes two points from it (76.6 % after local training) and
  ten from DFedAvgM: a client of DisPFL mixes only the half of the weights that its own mask keeps. A round takes 5.3 s,
  one of DFedAvgM 4.35 s. The new masks of every round, for which scores of all weights of all clients are drawn, are
  probably the difference; that was not measured apart.
* **DFedPGP** was stopped after 150 of 500 rounds, at 81.2 %; that says nothing about the published 85.6 %. It passes
  80 % between rounds 131 and 140, evaluated every tenth; the paper prints 131. Mixing adds six points in it, too: after
  local training it has 74.8 %. Eight processes of tests used the same GPU meanwhile, so its seconds are kept, but are
  no measurement of speed.
* **DFedAvg** (003, without a server) was stopped after 300 of 1,000 rounds at 77.2 %, 3.6 points *above* the 73.6 %
  that the paper prints after all of them, and its curve still rises. **DFedSAM**, stopped after as many rounds, has
  76.6 % (published 82.0). In all 15 evaluations DFedAvg is ahead, by 0.1 to 1.5 points on the test samples; the lead is
  1.2 points on average until round 200 and 0.5 after it. In the paper DFedSAM ends 8.5 points ahead. So far this does
  not show; whether 700 more rounds with smaller rates bring it is open, and one seed decides nothing. What is as the
  paper says: from round 140 on, DFedSAM's gap between training and test samples is below DFedAvg's in every evaluation,
  by 0.1 to 0.9 points. **FedSAM**, with ten clients per round instead of all hundred, has 69.6 % in round 300.
* Which detail makes DFedAvg so much worse in the paper? Four were tried with a fifth of CIFAR-10, on a CPU, as above:

{peers}
The graph of the paper's text, in which ten clients mix and the others keep what they have (`clique:10`), lowers both
mean models alike, by three points. Momentum raises them, and it is what tells the printed numbers apart: DFedAvgM is
6.4 points above DFedAvg there. The only public code with a DFedSAM, a third party's, has momentum 0.9, while the text
says that DFedAvgM alone has momentum. Here DFedSAM without momentum is level with DFedAvg, and with it 3.5 points
above, though below DFedAvgM. So the printed lead of DFedSAM over DFedAvg may be one of momentum. Its lead over
DFedAvgM, 2.1 points in the paper, shows with the graph of the text alone, on which momentum does harm: DFedSAM is 4.6
points above DFedAvgM there, but level with DFedAvg. Weight decay makes no difference, and a radius of 0.1 instead of
0.01 lowers DFedSAM by four points. None of these set-ups has the three methods in the printed order, which puts DFedAvg
last.

* DFedSAM and DFedAvg had the GPU to themselves: 2.68 and 1.54 s of training per round, 0.2 s for an evaluation with all
  training samples; until the end of the first round DFedSAM took 32 s, on a machine that had built nothing before, and
  DFedAvg, after it, 23 s.
* **FedSAM** was stopped after 855 of 1,000 rounds. The last evaluations, of rounds 700 to 840, lie between 79.2 and
  80.8 %, on average two points above those of rounds 500 to 600, so the curve still rises; that says nothing about the
  published 82.5 %. Its *training* accuracy is 85.3 % in round 840, where the paper prints 99.75 %, and its gap to the
  test samples is 5.6 points instead of 17.3: 145 rounds more at a rate of 0.02 will hardly change that. We measure one
  model, the mean of all, on all training samples; the paper does not say whose accuracy it prints. All eight methods of
  its table have 98.6 to 99.99 % there, also D-PSGD, which has 68 % on the test samples. That looks like models that are
  measured on what they have just been trained on, each client's own after its local epochs. These runs did not measure
  that; the recipe does so now (`--record own-train`) and compares it with the printed numbers.
  The radius of FedSAM's perturbation is not printed; ours is 0.05.
* FedSAM had the GPU to itself: 0.33 s of training per round, 0.18 s for an evaluation with all training samples, 63 s
  until the end of the first round, and 14 s for the first evaluation, whose program is built only then.
* One seed; the paper has three and gives no spread for rounds.
* Graphs are drawn as in the released code, ten others a client and round, not the doubly stochastic ones of the text.
* An independent plain implementation of the same specification passed 80 % with DFedAlt between rounds 136 and 140.
* FedAvg and FedPer are kept as curves of four digits; FedAvg was read after 499 rounds. FedRep, Fed-RoD, Ditto,
  DFedAvgM and DisPFL were evaluated every tenth round, FedBABU every fiftieth, since its evaluation fine-tunes
  everybody, FedPer with the script's rate as well, DFedAlt in every round.
* FedRep, FedBABU and Ditto shared the GPU with each other for a part of their rounds, and the FedBABU of the stepped
  rate stood still in its third round while Fed-RoD trained, so their seconds are no measurement of speed: [how fast it
  is](../performance.md) is. The row of Ditto with other epochs, that of FedBABU with another rate, and FedHM's first
  435 rounds ran at the same time on one GPU; FedHM had it to itself after that (0.26 to 0.28 s of training per round,
  0.35 to 0.38 s for an evaluation), and so had FedPer and Ditto with the script's rate (0.40 and 0.41 s, 0.16 s).
* All rows of this table that name no partition have the same samples in the same hands (the rows of every client were
  compared). The fingerprint of the data differs between older and newer rows, because it names one more property of
  crops, their border, black in all, and lately another name of the class that makes them.
"""
