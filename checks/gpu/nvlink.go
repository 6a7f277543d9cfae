package gpu

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/nvml"
)

// gpuNVLink checks the NVLinks of every GPU. With -n so many are up, else as many
// as the GPU should have. Three know how many that is: its platform, what
// it has had before, and most of the other GPUs of its model. A GPU fails that has
// fewer than the others where NVSwitches join them, or than two of the three say;
// if one alone says so it warns. Links that are down on all GPUs by design are
// none of these. Without NVSwitches a link leads to one other GPU: where that GPU is
// not in the node, or the board has no bridge, the link is down on a healthy node.
//
// -b MBPS fails links that are slower, one way; without it a link is warned of
// that has a tenth less than the platform's, or less than the others'. It warns of
// links that are closed to traffic, and of those that lead to something unknown
// where the others lead to a switch or a GPU. Where all GPUs are on
// NVSwitches each can get at every other one, to read and to write, both ways: a
// pair that cannot fails, all of them together are warned of, since
// check_gpu_fabric knows why.
//
// Errors are judged by what was added since the last run, link by link
// (checks/gpu/nvlinkerrors.toml has the limits), not in the first run after a boot: at
// 100 CRC errors a second it fails, of all others it warns; -s fails for these, too.
// A failure lasts for an hour, unless the counters are reset: a node that was
// drained has no traffic that would show it again.
// The effective bit error rate is judged where effective errors were added.
//
// GPUs with MIG on are left out: their links may be off.
// check_nvlink_status is AzureHPC's name of it; words that are no options are
// ignored there.
//
//	gpu* || check_gpu_nvlink
//	gpu* || check_gpu_nvlink -n 18 -b 26562
type gpuNVLink struct {
	Links  int  `opt:"n" toml:"links"`     // NVLinks that are up at least, of each GPU
	Speed  int  `opt:"b" toml:"bandwidth"` // MB/s that a link has at least, one way
	Strict bool `opt:"s" toml:"strict"`    // errors that are warned of fail

	name string
}

const (
	gpuNVLinkName   = "check_gpu_nvlink"
	azureNVLinkName = "check_nvlink_status"
)

func init() {
	const far = "See dmesg for Xid and SXid errors (check_gpu_xid). Reset the GPU or reboot; if it comes back the GPU, its baseboard or the NVSwitch is bad."
	for _, name := range []string{gpuNVLinkName, azureNVLinkName} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[-n LINKS] [-b MBPS] [-s]",
			Summary: "NVLinks are up, fast, free of errors, and join all GPUs",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuNVLink{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.nvlink.down":    far + " If fewer links were meant give their number with -n, or remove gpu-nvlinks.json in /var/lib/nhc-gpu.",
					"gpu.nvlink.speed":   far,
					"gpu.nvlink.traffic": "The link is up but the driver lets nothing through: see check_gpu_fabric, nvidia-smi nvlink -s, and the fabric manager's log.",
					"gpu.nvlink.far":     far,
					"gpu.nvlink.p2p":     "nvidia-smi topo -p2p n shows the same. If it is all pairs see check_gpu_fabric and the fabric manager; if it is those of one GPU reset it, or reboot.",
					"gpu.nvlink.errors":  "If jobs are slow or fail on this node reset the GPU when it is idle; if it goes on the GPU, its baseboard or the NVSwitch is bad.",
					"gpu.nvlink.ber":     "The link is poor, and will replay or drop: as for errors. On an NVL72 rack see the cartridge and the switch tray, too.",
					"gpu.nvlink.mig":     "Nothing: NVLinks of GPUs with MIG on are not judged.",
				}
			},
		})
	}
}

// Bind takes the words. AzureHPC's check has none, and looks at none.
func (c *gpuNVLink) Bind(words []string) error {
	if c.name == azureNVLinkName && len(words) > 0 && !strings.HasPrefix(words[0], "-") {
		words = nil
	}
	return checks.BindTags(c, words)
}

// linkRun is one run of the check.
type linkRun struct {
	*gpuNVLink
	*GPUs
	past map[string]linkPlaces
	most map[string]int    // how many links most GPUs of a model have up
	far  map[string]string // what most of the links of a model lead to
}

// linkPlaces is what a GPU has ever shown of its links.
type linkPlaces struct {
	Up  []bool   `json:"up"`
	Far []string `json:"far,omitempty"` // the PCI address of the other end
}

func (c *gpuNVLink) Run(_ context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, c.name, nvml.GroupModes|nvml.GroupNVLinks|nvml.GroupNVLinkSpeed|nvml.GroupNVLinkFar|nvml.GroupNVLinkCounts|nvml.GroupP2P)
	if s == nil {
		return findings
	}
	r := &linkRun{gpuNVLink: c, GPUs: s, past: map[string]linkPlaces{}, far: map[string]string{}}
	if err := env.Recall("gpu-nvlinks", &r.past); err != nil || r.past == nil {
		r.past = map[string]linkPlaces{} // a file that is broken is written anew
	}
	r.most = s.mostHave(func(g *nvml.GPU) nvml.Reading[int] {
		return nvml.Reading[int]{Value: linksUp(g.NVLinks.Value), Known: g.NVLinks.Known && !withMIG(g)}
	})
	for model, of := range r.farEnds() {
		r.far[model] = checks.Commonest(of)
	}
	m := recallGPU[linkErrors](env, c.name, "gpu-nvlink-errors", s.NVML.Taken)
	boot, _ := probe.BootID(env.Host) // without it no run is known to be of this boot
	divided, grown := 0, false
	s.Each(func(s *GPUs, g *nvml.GPU) {
		if withMIG(g) {
			divided++
			return
		}
		if s.Err == nil {
			s.Err = g.Modes.MIG.Err
		}
		grown = r.judge(g) || grown
		r.errors(g, m, boot)
	})
	s.fact("", " NVLinks up on each", func(g *nvml.GPU) nvml.Reading[int] {
		return nvml.Reading[int]{Value: linksUp(g.NVLinks.Value), Known: g.NVLinks.Known}
	})
	r.peers()
	if divided > 0 && divided == len(s.NVML.GPUs) {
		return []checks.Finding{checks.Finding{Code: "gpu.nvlink.mig", Severity: checks.Skip}.Describe(c.name, "MIG is on, the NVLinks are not judged")}
	}
	if grown {
		s.Findings = append(s.Findings, checks.KeepForLater(env, c.name, "gpu-nvlinks", r.past)...)
	}
	return append(s.Done(), m.store(env)...)
}

func linksUp(list []bool) (n int) {
	for _, on := range list {
		if on {
			n++
		}
	}
	return n
}

// farEnds count what the links of each model lead to.
func (r *linkRun) farEnds() map[string]map[string]int {
	ends := map[string]map[string]int{}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		for _, far := range g.NVLink.Far.Value {
			if far == "" || far == "unknown" || withMIG(g) {
				continue
			}
			if ends[g.Name.Value] == nil {
				ends[g.Name.Value] = map[string]int{}
			}
			ends[g.Name.Value][far]++
		}
	}
	return ends
}

// judge looks at the links of one GPU. grown says that it has shown something that
// it had not shown before.
func (r *linkRun) judge(g *nvml.GPU) (grown bool) {
	judged := r.Judged
	up, known := Value(r.GPUs, g.NVLinks)
	before := r.past[g.UUID.Value]
	if want, _ := r.wanted(g, linksUp(up), linksUp(before.Up)); linksUp(up) == 0 && want == 0 && r.Links <= 0 && g.NVLinks.Err == nil {
		r.Judged = judged // no link is up, and nothing says that one should be
		return false
	}
	if g.NVLinks.Err != nil || !known && r.most[g.Name.Value] == 0 && linksUp(before.Up) == 0 {
		return false // it has none, or nobody knows
	}
	r.Judged = true
	r.judgeDown(g, up, before)
	r.judgeSpeed(g, up)
	r.judgeEnds(g, up)
	next := linkPlaces{Up: slices.Clone(before.Up), Far: slices.Clone(before.Far)}
	for link, on := range up {
		if link >= len(next.Up) {
			next.Up = append(next.Up, false)
		}
		if link >= len(next.Far) {
			next.Far = append(next.Far, "")
		}
		next.Up[link] = next.Up[link] || on
		if far := at(g.NVLink.FarPCI.Value, link); far != "" {
			next.Far[link] = far
		}
	}
	if grown = g.UUID.Known && (!slices.Equal(next.Up, before.Up) || !slices.Equal(next.Far, before.Far)); grown {
		r.past[g.UUID.Value] = next
	}
	return grown
}

// at is an item of a list, which may be shorter than another one.
func at[T any](list []T, i int) (v T) {
	if i < len(list) {
		v = list[i]
	}
	return v
}

// judgeDown looks for links that should be up.
func (r *linkRun) judgeDown(g *nvml.GPU, up []bool, before linkPlaces) {
	have, want, severity := linksUp(up), r.Links, checks.Fail
	if want <= 0 {
		want, severity = r.wanted(g, have, linksUp(before.Up))
	}
	if have >= want {
		return
	}
	var down []int
	for link := range max(len(up), len(before.Up)) {
		if at(before.Up, link) && !at(up, link) {
			down = append(down, link)
		}
	}
	if len(down) == 0 {
		down = r.othersHave(g, up)
	}
	text := checks.Plural(want-have, "link") + " of them down"
	switch {
	case have == 0:
		text = "every NVLink is down"
	case len(down) > 0:
		text = linkList(down) + " down" + farOf(before, down)
	}
	r.Report(g, checks.Finding{Code: "gpu.nvlink.down", Severity: severity, Remedy: checks.ResetGPU, Want: fmt.Sprintf("%d up", want), Got: fmt.Sprint(have)}, "%s", text)
}

// wanted asks the three who know how many links there should be.
func (r *linkRun) wanted(g *nvml.GPU, have, had int) (want int, severity checks.Severity) {
	p, most := r.platform(g), r.most[g.Name.Value]
	bare := have == 0 && had == 0
	if bare && len(r.NVML.GPUs) == 1 {
		return 0, checks.Warn // one GPU of a board, as clouds rent it
	}
	links, switched := p.NVLinks, r.far[g.Name.Value] == "switch"
	switch {
	case switched:
	case bare && len(p.GPUs) == 0:
		return 0, checks.Warn // a card without a bridge
	case len(r.NVML.GPUs) < p.NVLinkGPUs && (most > 0 || p.NVSwitchGPUs == 0): // a part of a board: links to the rest are down
		links = 0
		if most != p.NVLinks { // the GPUs of a part differ
			most = 0
		}
	}
	witnesses := 0
	for _, n := range []int{links, had, most} {
		if n > have {
			witnesses++
		}
		want = max(want, n)
	}
	if most > have && switched || witnesses > 1 && !bare {
		return want, checks.Fail
	}
	return want, checks.Warn
}

// othersHave are the links that are down here and up on most GPUs of the model.
func (r *linkRun) othersHave(g *nvml.GPU, up []bool) (down []int) {
	others, all := map[int]int{}, 0
	for i := range r.NVML.GPUs {
		o := &r.NVML.GPUs[i]
		if o == g || o.Name.Value != g.Name.Value || !o.NVLinks.Known || withMIG(o) {
			continue
		}
		all++
		for link, on := range o.NVLinks.Value {
			if on {
				others[link]++
			}
		}
	}
	for link := range up {
		if !up[link] && others[link]*2 > all {
			down = append(down, link)
		}
	}
	return down
}

// linkList is "link 7 is", "links 4, 7 are".
func linkList(links []int) string {
	words := make([]string, len(links))
	for i, n := range links {
		words[i] = fmt.Sprint(n)
	}
	if len(words) == 1 {
		return "link " + words[0] + " is"
	}
	return "links " + strings.Join(words, ", ") + " are"
}

// farOf says where the links have led to, if they all have led there: a switch
// that is dead takes links of every GPU with it.
func farOf(before linkPlaces, links []int) string {
	far := at(before.Far, links[0])
	for _, link := range links {
		if at(before.Far, link) != far {
			return ""
		}
	}
	if far == "" {
		return ""
	}
	return ", which led to " + far
}

// What check_gpu_nvlink makes of links that are up: how fast they are, where they
// lead to, and whether the GPUs can get at each other by them.

// speedSlack is what a link may lack of its platform's speed, in percent: some
// drivers tell it before, some after what error correction takes.
const speedSlack = 10

func (r *linkRun) judgeSpeed(g *nvml.GPU, up []bool) {
	speeds, known := Value(r.GPUs, g.NVLink.Speed)
	if !known {
		return
	}
	p := r.platform(g)
	least, severity, than := r.Speed, checks.Fail, ""
	if least <= 0 {
		least, severity, than = p.NVLinkBandwidth*(100-speedSlack)/100, checks.Warn, ", less than "+p.Name
	}
	usual := r.usualSpeed(g.Name.Value)
	if usual == 0 { // no link tells its speed
		return
	}
	if r.Speed <= 0 && usual > least {
		least, than = usual, ", less than the others"
	}
	var slow []int
	lowest := least
	for link, speed := range speeds {
		if at(up, link) && speed < least {
			slow, lowest = append(slow, link), min(lowest, speed)
		}
	}
	if len(slow) > 0 {
		r.Report(g, checks.Finding{Code: "gpu.nvlink.speed", Severity: severity, Remedy: checks.ResetGPU, Want: fmt.Sprintf("at least %d MB/s", least), Got: fmt.Sprintf("%d MB/s", lowest)},
			"%s slow%s", linkList(slow), than)
	}
}

// usualSpeed is that of most links of a model on this node.
func (r *linkRun) usualSpeed(model string) (usual int) {
	times := map[int]int{}
	for i := range r.NVML.GPUs {
		if g := &r.NVML.GPUs[i]; g.Name.Value == model && !withMIG(g) {
			for link, speed := range g.NVLink.Speed.Value {
				if at(g.NVLinks.Value, link) && speed > 0 {
					times[speed]++
				}
			}
		}
	}
	for speed, n := range times {
		if n > times[usual] || n == times[usual] && speed > usual {
			usual = speed
		}
	}
	return usual
}

func (r *linkRun) judgeEnds(g *nvml.GPU, up []bool) {
	idle, _ := Value(r.GPUs, g.NVLink.Idle)
	ends, _ := Value(r.GPUs, g.NVLink.Far)
	Value(r.GPUs, g.NVLink.FarPCI)
	Value(r.GPUs, g.NVLink.PeerP2P)
	usual := r.far[g.Name.Value]
	var shut, lost []int
	for link := range up {
		if at(idle, link) {
			shut = append(shut, link)
		}
		if up[link] && usual != "" && at(ends, link) == "unknown" {
			lost = append(lost, link)
		}
	}
	if len(shut) > 0 {
		r.Report(g, checks.Finding{Code: "gpu.nvlink.traffic", Severity: checks.Warn, Remedy: checks.CheckFabric}, "%s up, but closed to traffic", linkList(shut))
	}
	if len(lost) > 0 {
		r.Report(g, checks.Finding{Code: "gpu.nvlink.far", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: usual, Got: "unknown"}, "other end, where %s up", linkList(lost))
	}
}

// peers looks at all pairs of GPUs that NVSwitches join. The GPU that has more bad
// pairs than the other one is named for a pair, both if they have as many.
func (r *linkRun) peers() {
	names, bad, good := r.joined(), map[string]map[string]string{}, 0
	for a := range names {
		bad[a] = map[string]string{}
	}
	for a, g := range names {
		for b, o := range names {
			there, known := g.NVLink.PeerP2P.Value[b]
			back := o.NVLink.PeerP2P.Value[a]
			switch {
			case a == b:
			case known && there != nvml.P2POK:
				bad[a][b] = there
			case back != "" && back != nvml.P2POK:
				bad[a][b] = back
			case known && back != "":
				good++
			}
		}
	}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		a := fmt.Sprintf("gpu%d", g.Index)
		var with []string
		why := ""
		for b, text := range bad[a] {
			if len(bad[b]) <= len(bad[a]) {
				with = append(with, b)
				if why == "" || text < why {
					why = text
				}
			}
		}
		if len(with) == 0 {
			continue
		}
		f := checks.Finding{Code: "gpu.nvlink.p2p", Severity: checks.Fail, Remedy: checks.CheckFabric, Want: nvml.P2POK, Got: why}
		if good == 0 || strings.Contains(why, "disabled") {
			f.Severity = checks.Warn
		}
		slices.Sort(with)
		who := strings.Join(with, ", ")
		if len(with) > 2 {
			who = fmt.Sprintf("%d of %d GPUs", len(with), len(names)-1)
		}
		r.Report(g, f, "NVLink traffic with %s", who)
	}
}

// joined are the GPUs by name that have links up, all to NVSwitches. Confidential
// computing closes peer-to-peer traffic.
func (r *linkRun) joined() map[string]*nvml.GPU {
	names := map[string]*nvml.GPU{}
	if r.NVML.CC.Value {
		return names
	}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		if g.Err == nil && !withMIG(g) && linksUp(g.NVLinks.Value) > 0 && r.far[g.Name.Value] == "switch" {
			names[fmt.Sprintf("gpu%d", g.Index)] = g
		}
	}
	return names
}
