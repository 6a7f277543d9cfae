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

// gpuNVLink checks the NVLinks of every GPU: their number, speed, far ends, peer-to-peer access and
// errors.
//
// Number: with -n at least LINKS must be up. Without -n there are three references: the number of
// the platform, the number that the GPU had before, and the number of most GPUs of its model. On a
// board with NVSwitches a GPU fails if it has fewer links than most GPUs of its model. Otherwise it
// warns if one reference is higher, and fails if two are. Links that are down on all GPUs by design
// do not count. Without NVSwitches a link connects two GPUs: it is down on a healthy node if the
// other GPU is not in the node, or the board has no bridge.
//
// Speed: with -b a link fails below MBPS in one direction. Without -b it warns if it is 10 % slower
// than on the platform, or slower than the other links.
//
// Far ends: it warns of links that are closed to traffic, and of links with an unknown far end if
// the other links are connected to a switch or a GPU. If all GPUs are on NVSwitches each must have
// read and write access to every other one: a pair without access fails. If no pair has access it
// only warns, since check_gpu_fabric finds the cause. Pairs of different partitions (cluster or
// clique of the fabric) with at least two GPUs each are not judged: it warns of the partitions.
//
// Errors: it judges the errors of each link since the last run of this boot, by the limits in
// checks/gpu/nvlinkerrors.toml. At more than 100 CRC errors per second it fails, for other errors
// it warns; -s makes these fail, too. A failure lasts for an hour unless the counters are reset,
// since a drained node has no traffic that could show it again. It judges the effective bit error
// rate of links that have new effective errors.
//
// In the first five minutes after a boot the fabric manager trains the links. Until then the number of links
// and the access of a GPU with too few links to NVSwitches, and of a model with no link up, are not judged;
// the prolog of a job waits for the links, and refuses the job without them.
//
// GPUs with MIG on are skipped: their links can be off. So is a GPU without a link that is up whose
// MIG mode cannot be read. check_nvlink_status is AzureHPC's name; it ignores arguments that are not
// options.
//
//	gpu* || check_gpu_nvlink
//	gpu* || check_gpu_nvlink -n 18 -b 26562
type gpuNVLink struct {
	Links  int  `opt:"n" toml:"links" in:"0:64 min"`             // lowest number of NVLinks that are up on each GPU; 0: by platform, earlier runs and the other GPUs
	Speed  int  `opt:"b" toml:"bandwidth" in:"1000:1000000 min"` // lowest bandwidth of a link in one direction, MB/s; 0: by platform and the other links
	Strict bool `opt:"s" toml:"strict"`                          // fail instead of warn about errors

	name string
}

const (
	gpuNVLinkName   = "check_gpu_nvlink"
	azureNVLinkName = "check_nvlink_status"
)

func init() {
	const far = "Look for Xid and SXid errors in dmesg (check_gpu_xid). Reset the GPU or reboot; if the fault returns, the GPU, its baseboard or the NVSwitch is faulty."
	for _, name := range []string{gpuNVLinkName, azureNVLinkName} {
		checks.Register(checks.Info{
			Name:    name,
			Usage:   "[-n LINKS] [-b MBPS] [-s]",
			Summary: "NVLinks are up and fast, have few errors, connect all GPUs",
			Lane:    checks.NVML,
			New:     func() checks.Check { return &gpuNVLink{name: name} },
			Do: func() map[string]string {
				return map[string]string{
					"gpu.nvlink.down":    far + " If all GPUs have the same number of links, correct -n in nhc.conf. If the number was reduced on purpose, set it with -n, or delete gpu-nvlinks.json in " + checks.PastDir + ".",
					"gpu.nvlink.speed":   far + " If all links have the same speed, correct -b in nhc.conf.",
					"gpu.nvlink.traffic": "The link is up but the driver blocks its traffic: look at check_gpu_fabric, nvidia-smi nvlink -s, and the fabric manager's log.",
					"gpu.nvlink.far":     far,
					"gpu.nvlink.p2p":     "Compare with nvidia-smi topo -p2p n. If all pairs fail, look at check_gpu_fabric and the fabric manager; if the pairs of one GPU fail, reset that GPU or reboot.",
					"gpu.nvlink.errors":  "If jobs are slow or fail on this node, reset the GPU when it is idle; if the errors return, the GPU, its baseboard or the NVSwitch is faulty.",
					"gpu.nvlink.ber":     "The link is poor and will replay packets or go down. Reset the GPU when it is idle; if that does not help, the GPU, its baseboard or the NVSwitch is faulty. On an NVL72 rack check the cable cartridge and the switch tray, too.",
					"gpu.nvlink.boot":    "Nothing to repair in the first five minutes after a boot: a later run checks the links. If a job waits for the node run the check again.",
					"gpu.nvlink.mig":     "Nothing: NVLinks of GPUs with MIG on are not judged.",
				}
			},
		})
	}
}

// Bind sets the options. AzureHPC's check ignores its arguments.
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
	most map[string]int    // the most common number of links that are up, by model
	far  map[string]string // the most common kind of far end, by model
}

// linkPlaces are the links that a GPU had up in any run, and their far ends.
type linkPlaces struct {
	Up  []bool   `json:"up"`
	Far []string `json:"far,omitempty"` // PCI address of the far end
}

const groupLinks = nvml.GroupModes | nvml.GroupNVLinks | nvml.GroupNVLinkSpeed | nvml.GroupNVLinkFar | nvml.GroupNVLinkCounts | nvml.GroupP2P | nvml.GroupFabric

func (c *gpuNVLink) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	s, findings := AskNVML(env, c.name, groupLinks)
	if s == nil {
		return findings
	}
	r := &linkRun{gpuNVLink: c, GPUs: s, past: map[string]linkPlaces{}, far: map[string]string{}}
	if err := env.Recall("gpu-nvlinks", &r.past); err != nil || r.past == nil {
		r.past = map[string]linkPlaces{} // start again if the file is damaged
	}
	_, booting := env.SinceBoot()
	err := await(ctx, s, groupLinks, "the NVLinks", func() bool {
		return booting && slices.ContainsFunc(s.NVML.GPUs, func(g nvml.GPU) bool { return r.isStarting(&g) })
	})
	if err != nil {
		return []checks.Finding{CannotAsk(c.name, err)}
	}
	r.most = s.findCommon(readLinks)
	for model, of := range r.countFarEnds() {
		r.far[model] = checks.Commonest(of)
	}
	m := recallGPU[linkErrors](env, c.name, "gpu-nvlink-errors", s.NVML.Taken)
	boot, _ := probe.BootID(env.Host) // without it no earlier run counts as one of this boot
	divided, grown := 0, false
	s.Each(func(s *GPUs, g *nvml.GPU) {
		if withMIG(g) {
			divided++
			return
		}
		if s.Err == nil {
			s.Err = unreadMIG(g)
		}
		grown = r.judge(g) || grown
		r.judgeErrors(g, m, boot)
	})
	s.fact("", " NVLinks up on each", func(g *nvml.GPU) nvml.Reading[int] {
		return nvml.Reading[int]{Value: countUp(g.NVLinks.Value), Known: g.NVLinks.Known && g.NVLinks.Err == nil}
	})
	r.judgePeers()
	s.Findings = env.Settle(s.Findings, c.name, checks.Finding{Code: "gpu.nvlink.boot"}, func(f checks.Finding) bool {
		return slices.ContainsFunc(s.NVML.GPUs, func(g nvml.GPU) bool {
			// A GPU without links has no traffic with the others.
			return (f.Code == "gpu.nvlink.down" && f.Device == checks.GPUDevice(&g) || f.Code == "gpu.nvlink.p2p") && r.isStarting(&g)
		})
	})
	if divided > 0 && divided == len(s.NVML.GPUs) {
		return []checks.Finding{checks.Finding{Code: "gpu.nvlink.mig", Severity: checks.Skip}.Describe(c.name, "NVLinks are not judged: MIG is on")}
	}
	if grown {
		s.Findings = append(s.Findings, checks.KeepForLater(env, c.name, "gpu-nvlinks", r.past)...)
	}
	return append(s.Done(), m.store(s)...)
}

// readLinks returns the number of links that are up; unknown with MIG, and if one could not be read.
func readLinks(g *nvml.GPU) nvml.Reading[int] {
	return nvml.Reading[int]{Value: countUp(g.NVLinks.Value), Known: g.NVLinks.Known && g.NVLinks.Err == nil && !offByMIG(g)}
}

// offByMIG reports whether MIG is on, or may be: the driver has then shut down the links.
func offByMIG(g *nvml.GPU) bool {
	return withMIG(g) || unreadMIG(g) != nil && countUp(g.NVLinks.Value) == 0
}

func countUp(list []bool) (n int) {
	for _, on := range list {
		if on {
			n++
		}
	}
	return n
}

// countFarEnds counts the links to each kind of far end, by model.
func (r *linkRun) countFarEnds() map[string]map[string]int {
	ends := map[string]map[string]int{}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		for _, far := range g.NVLink.Far.Value {
			if far == "" || far == "unknown" || offByMIG(g) {
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

// judge judges the links of one GPU. grown: a link or a far end is new.
func (r *linkRun) judge(g *nvml.GPU) (grown bool) {
	judged := r.Judged
	up, known := Value(r.GPUs, g.NVLinks)
	before := r.past[g.UUID.Value]
	if offByMIG(g) {
		return false
	}
	if want, _ := r.findWanted(g, countUp(up), countUp(before.Up)); countUp(up) == 0 && want == 0 && r.Links <= 0 && g.NVLinks.Err == nil {
		r.Judged = judged // no link is up, and no reference wants one
		return false
	}
	if !known && (g.NVLinks.Err != nil || r.most[g.Name.Value] == 0 && countUp(before.Up) == 0) {
		return false // it has no links, or they are unknown
	}
	r.Judged = true
	assumed, all := slices.Clone(up), r.countLinks(g, before) // an unread link may be up
	for link := range assumed {
		assumed[link] = up[link] || link < all && at(g.NVLinksUnread, link)
	}
	r.judgeDown(g, assumed, before)
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

// countLinks returns the number of links that a GPU can have: NVML does not report it if it does not answer, and the
// list then has links that do not exist.
func (r *linkRun) countLinks(g *nvml.GPU, before linkPlaces) (n int) {
	for link, on := range before.Up {
		if on {
			n = link + 1
		}
	}
	for i := range r.NVML.GPUs {
		if o := &r.NVML.GPUs[i]; o.Name.Value == g.Name.Value && o.NVLinks.Err == nil {
			n = max(n, len(o.NVLinks.Value))
		}
	}
	if n = max(n, r.findPlatform(g).NVLinks); n == 0 {
		return len(g.NVLinks.Value)
	}
	return max(n, r.Links)
}

// at returns list[i], or the zero value beyond its end.
func at[T any](list []T, i int) (v T) {
	if i < len(list) {
		v = list[i]
	}
	return v
}

// judgeDown reports links that are down and should be up.
func (r *linkRun) judgeDown(g *nvml.GPU, up []bool, before linkPlaces) {
	have, want, severity, remedy := countUp(up), r.Links, checks.Fail, checks.ResetGPU
	wanted, byWitness := r.findWanted(g, have, countUp(before.Up))
	if want <= 0 {
		want, severity = wanted, byWitness
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
		down = r.findUpOnOthers(g, up)
	}
	text := "too few NVLinks are up"
	switch {
	case have == 0:
		text = "all NVLinks are down"
	case r.Links > 0 && wanted <= have && r.allMiss(g, r.Links, readLinks): // only nhc.conf wants more
		text, remedy = text+", as on most GPUs of this model", checks.FixConfig
	case len(down) > 0:
		text = formatLinks(down) + " down" + formatFarEnd(before, down)
	}
	r.Report(g, checks.Finding{Code: "gpu.nvlink.down", Severity: severity, Remedy: remedy, Want: fmt.Sprintf("%d up", want), Got: fmt.Sprint(have)}, "%s", text)
}

// findWanted returns the number of links that the three references want: the platform, earlier
// runs, and the other GPUs.
func (r *linkRun) findWanted(g *nvml.GPU, have, had int) (want int, severity checks.Severity) {
	p, most := r.findPlatform(g), r.most[g.Name.Value]
	bare := have == 0 && had == 0
	if bare && len(r.NVML.GPUs) == 1 {
		return 0, checks.Warn // a cloud rents one GPU of a board
	}
	links, switched := p.NVLinks, r.far[g.Name.Value] == "switch"
	switch {
	case switched:
	case bare && len(p.GPUs) == 0:
		return 0, checks.Warn // a card without a bridge
	case len(r.NVML.GPUs) < p.NVLinkGPUs && (most > 0 || p.NVSwitchGPUs == 0): // a part of a board: links to the other GPUs are down
		links = 0
		if most != p.NVLinks { // the GPUs of such a part have different numbers of links
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

// isStarting reports whether the links of a GPU may be training after a boot: it has fewer to NVSwitches than it
// should have, or none of its model is up, and there should be some. A driver without NVLinks reports none.
func (r *linkRun) isStarting(g *nvml.GPU) bool {
	if !g.NVLinks.Known || g.NVLinks.Err != nil || offByMIG(g) {
		return false
	}
	have, had := countUp(g.NVLinks.Value), countUp(r.past[g.UUID.Value].Up)
	if p := r.findPlatform(g); p.HasNVSwitches(len(r.NVML.GPUs)) || p.NVLinkDomain > 0 && !meshed(g) {
		want := r.Links
		if want <= 0 {
			want, _ = r.findWanted(g, have, had)
		}
		return have < want
	}
	for i := range r.NVML.GPUs {
		if o := &r.NVML.GPUs[i]; o.Name.Value == g.Name.Value && countUp(o.NVLinks.Value) > 0 {
			return false
		}
	}
	want, _ := r.findWanted(g, 0, had)
	return max(want, r.Links) > 0
}

// findUpOnOthers returns the links that are down on g and up on most GPUs of its model.
func (r *linkRun) findUpOnOthers(g *nvml.GPU, up []bool) (down []int) {
	others, all := map[int]int{}, 0
	for i := range r.NVML.GPUs {
		o := &r.NVML.GPUs[i]
		if o == g || o.Name.Value != g.Name.Value || !o.NVLinks.Known || offByMIG(o) {
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

// formatLinks returns "NVLink 7 is" or "NVLinks 4, 7 are".
func formatLinks(links []int) string {
	words := make([]string, len(links))
	for i, n := range links {
		words[i] = fmt.Sprint(n)
	}
	if len(words) == 1 {
		return "NVLink " + words[0] + " is"
	}
	return "NVLinks " + strings.Join(words, ", ") + " are"
}

// formatFarEnd names the far end of the links if all had the same one: a dead switch takes down
// links of every GPU.
func formatFarEnd(before linkPlaces, links []int) string {
	far := at(before.Far, links[0])
	for _, link := range links {
		if at(before.Far, link) != far {
			return ""
		}
	}
	if far == "" {
		return ""
	}
	return ", before that connected to " + far
}

// Links that are up: their speed, their far ends, and peer-to-peer access.

// speedSlack is how much slower than its platform's figure a link can be, in percent: some drivers
// report the speed before, some after the overhead of error correction.
const speedSlack = 10

func (r *linkRun) judgeSpeed(g *nvml.GPU, up []bool) {
	speeds, known := Value(r.GPUs, g.NVLink.Speed)
	if !known {
		return
	}
	p := r.findPlatform(g)
	normal := p.NVLinkBandwidth * (100 - speedSlack) / 100
	least, severity, remedy, than := r.Speed, checks.Fail, checks.ResetGPU, ""
	if least <= 0 {
		least, severity, than = normal, checks.Warn, ", less than "+p.Name
	}
	usual := r.findUsualSpeed(g.Name.Value)
	if usual == 0 { // no link reports its speed
		return
	}
	if r.Speed <= 0 && usual > least {
		least, than = usual, ", less than the others"
	}
	var slow []int
	lowest := least
	for link, speed := range speeds {
		if at(up, link) && speed != nvml.UnreadSpeed && speed < least {
			slow, lowest = append(slow, link), min(lowest, speed)
		}
	}
	if r.Speed > 0 && lowest >= usual && lowest >= normal { // only nhc.conf wants more
		remedy, than = checks.FixConfig, ", as most links of this model"
	}
	if len(slow) > 0 {
		r.Report(g, checks.Finding{Code: "gpu.nvlink.speed", Severity: severity, Remedy: remedy, Want: fmt.Sprintf("at least %d MB/s", least), Got: fmt.Sprintf("%d MB/s", lowest)},
			"%s slow%s", formatLinks(slow), than)
	}
}

// findUsualSpeed returns the most common link speed of a model on this node.
func (r *linkRun) findUsualSpeed(model string) (usual int) {
	times := map[int]int{}
	for i := range r.NVML.GPUs {
		if g := &r.NVML.GPUs[i]; g.Name.Value == model && !offByMIG(g) {
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
		r.Report(g, checks.Finding{Code: "gpu.nvlink.traffic", Severity: checks.Warn, Remedy: checks.CheckFabric}, "%s up, but closed to traffic", formatLinks(shut))
	}
	if len(lost) > 0 {
		r.Report(g, checks.Finding{Code: "gpu.nvlink.far", Severity: checks.Warn, Remedy: checks.CheckFabric, Want: usual, Got: "unknown"}, "far end of %s", formatLinkNumbers(lost))
	}
}

// judgePeers judges all pairs of GPUs that are connected through NVSwitches, and not in different
// partitions. For a bad pair it names the GPU with more bad pairs, or both.
func (r *linkRun) judgePeers() {
	names, bad, good := r.findSwitched(), map[string]map[string]string{}, 0
	members := map[string]int{}
	for a, g := range names {
		bad[a] = map[string]string{}
		members[partitionOf(g)]++
	}
	groups := 0
	for p, n := range members {
		if p != "" && n > 1 {
			groups++
		}
	}
	if groups > 1 { // on purpose, or not: a job of all GPUs is slow
		r.Findings = append(r.Findings, checks.Finding{Code: "gpu.nvlink.p2p", Severity: checks.Warn, Remedy: checks.CheckFabric}.
			Describe(r.name, "the GPUs of this node are in %d partitions of the fabric", groups))
	}
	divided := func(g, o *nvml.GPU) bool { // a GPU that is alone may be in the wrong one
		p, q := partitionOf(g), partitionOf(o)
		return p != q && p != "" && q != "" && members[p] > 1 && members[q] > 1
	}
	for a, g := range names {
		for b, o := range names {
			there, known := g.NVLink.PeerP2P.Value[b]
			back := o.NVLink.PeerP2P.Value[a]
			switch {
			case a == b, divided(g, o):
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
		a := checks.GPUName(g)
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

// partitionOf returns the cluster and clique of a GPU that has joined the fabric, "" for others.
func partitionOf(g *nvml.GPU) string {
	f := g.Fabric.Value
	if !g.Fabric.Known || f.State != nvml.FabricCompleted || f.Status != 0 {
		return ""
	}
	return fmt.Sprint(f.Cluster, " ", f.Clique)
}

// findSwitched returns, by name, the GPUs with links to NVSwitches. With confidential computing
// it returns none, since that blocks peer-to-peer traffic.
func (r *linkRun) findSwitched() map[string]*nvml.GPU {
	names := map[string]*nvml.GPU{}
	if r.NVML.CC.Value {
		return names
	}
	for i := range r.NVML.GPUs {
		g := &r.NVML.GPUs[i]
		if g.Err == nil && !offByMIG(g) && countUp(g.NVLinks.Value) > 0 && r.far[g.Name.Value] == "switch" {
			names[checks.GPUName(g)] = g
		}
	}
	return names
}
