package nvml

import (
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// What NVML is asked of the NVLinks of a GPU. Only links that are up are asked:
// of others the driver has no speed, no far end and no counter that grows.

// NVLink is what NVML tells of the NVLinks of a GPU beside whether they are up.
// Each list is as long as GPU.NVLinks, by the number of the link.
type NVLink struct {
	Speed   Reading[[]int]      // MB/s, one way; 0: not told
	Idle    Reading[[]bool]     // up, but closed to traffic
	Far     Reading[[]string]   // what is at the other end: "switch", "gpu", "npu", "unknown"; "": not told
	FarPCI  Reading[[]string]   // where that is: 0000:05:00.0; "": not told
	Counts  Reading[LinkCounts] // since the driver was loaded
	BER     Reading[[]float64]  // effective bit error rate, of NVLink 5 and later; 0: none, or not told
	PeerP2P Reading[PeerP2P]
}

// LinkCounts are counters by their names, and the numbers of the links.
type LinkCounts map[string][]uint64

// PeerP2P says by the peer, "gpu5", whether a GPU can get at its memory over
// NVLink: "ok", or what cannot be done and why.
type PeerP2P map[string]string

// P2POK is the word for a peer that can be got at.
const P2POK = "ok"

// links are the NVLinks of the GPU, asked for once; none if it has none.
func (q query) links() []bool {
	if !q.g.NVLinks.Known && q.g.NVLinks.Err == nil {
		q.nvlinks()
	}
	return q.g.NVLinks.Value
}

// eachLink gives a list of what a call tells of every link that is up.
func eachLink[T any](q query, call func(link int) Reading[T]) Reading[[]T] {
	up := q.links()
	list, known := make([]T, len(up)), false
	for link := range up {
		if !up[link] {
			continue
		}
		r := unknownIsUnsupported(call(link))
		if r.Err != nil {
			return Failed[[]T](r.Err)
		}
		list[link] = r.Value
		known = known || r.Known
	}
	if !known {
		return Reading[[]T]{}
	}
	return Known(list)
}

// linkFields asks for fields of every link that is up in one call: the lists are
// in the order of the fields.
func (q query) linkFields(field func(link int) []uint32) [][]Reading[int64] {
	up := q.links()
	var ask []scoped
	for link := range up {
		if up[link] {
			for _, id := range field(link) {
				ask = append(ask, scoped{id, uint32(link)})
			}
		}
	}
	if len(ask) == 0 {
		return nil
	}
	values := q.scopedFields(ask)
	out := make([][]Reading[int64], len(field(0)))
	for i := range out {
		out[i] = make([]Reading[int64], len(up))
	}
	at := 0
	for link := range up {
		if !up[link] {
			continue
		}
		for i := range out {
			out[i][link] = values[at]
			at++
		}
	}
	return out
}

// list makes one reading of those of all links.
func list[T any](of []Reading[int64], change func(int64) T) Reading[[]T] {
	values, known := make([]T, len(of)), false
	for link, r := range of {
		if r.Err != nil {
			return Failed[[]T](r.Err)
		}
		if r.Known {
			values[link], known = change(r.Value), true
		}
	}
	if !known {
		return Reading[[]T]{}
	}
	return Known(values)
}

// speedFields are those of drivers before 515, which have one for each link.
var speedFields = append(span(nvml.FI_DEV_NVLINK_SPEED_MBPS_L0, 6), span(nvml.FI_DEV_NVLINK_SPEED_MBPS_L6, 6)...)

func span(first uint32, n int) (ids []uint32) {
	for i := range n {
		ids = append(ids, first+uint32(i))
	}
	return ids
}

// closed is NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED.
const closed = nvml.NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED

func (q query) nvlinkSpeed() {
	v := q.linkFields(func(int) []uint32 {
		return []uint32{nvml.FI_DEV_NVLINK_GET_SPEED, nvml.FI_DEV_NVLINK_GET_STATE}
	})
	if v == nil {
		return
	}
	speed := func(n int64) int { return int(max(n, 0)) }
	q.g.NVLink.Speed = list(v[0], speed)
	q.g.NVLink.Idle = list(v[1], func(n int64) bool { return n == closed })
	if !q.g.NVLink.Speed.Known && q.g.NVLink.Speed.Err == nil {
		v = q.linkFields(func(link int) []uint32 {
			if link < len(speedFields) {
				return []uint32{speedFields[link]}
			}
			return []uint32{nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}
		})
		q.g.NVLink.Speed = list(v[0], speed)
	}
}

// farEnds are the words for nvmlIntNvLinkDeviceType_t.
var farEnds = map[nvml.IntNvLinkDeviceType]string{
	nvml.NVLINK_DEVICE_TYPE_GPU: "gpu", nvml.NVLINK_DEVICE_TYPE_IBMNPU: "npu", nvml.NVLINK_DEVICE_TYPE_SWITCH: "switch",
}

func (q query) nvlinkFar() {
	q.g.NVLink.Far = eachLink(q, func(link int) Reading[string] {
		return as(ask(q.s, "nvmlDeviceGetNvLinkRemoteDeviceType", q.who, func() (nvml.IntNvLinkDeviceType, nvml.Return) {
			return q.d.GetNvLinkRemoteDeviceType(link)
		}), func(t nvml.IntNvLinkDeviceType) string {
			if word, ok := farEnds[t]; ok {
				return word
			}
			return "unknown"
		})
	})
	q.g.NVLink.FarPCI = eachLink(q, func(link int) Reading[string] {
		return as(ask(q.s, "nvmlDeviceGetNvLinkRemotePciInfo_v2", q.who, func() (nvml.PciInfo, nvml.Return) {
			return q.d.GetNvLinkRemotePciInfo(link)
		}), func(p nvml.PciInfo) string {
			if p.Domain == 0 && p.Bus == 0 && p.Device == 0 { // a switch of another chassis has no address here
				return ""
			}
			return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
		})
	})
}

// linkCounter is a counter of each link.
type linkCounter struct {
	name  string
	field func(link int) uint32
}

func always(id uint32) func(int) uint32 { return func(int) uint32 { return id } }

// perLink are the counters of drivers before 515, which have a field for each of
// twelve links; of a further one the field is that of all, which has no number.
func perLink(first, seventh uint32) func(int) uint32 {
	ids := append(span(first, 6), span(seventh, 6)...)
	return func(link int) uint32 {
		if link < len(ids) {
			return ids[link]
		}
		return 0 // no field: not supported
	}
}

// The counters by the generation of NVLink: up to 4, the same by the fields of
// older drivers, and 5, whose FEC leaves other errors to be seen.
var linkCounters = [][]linkCounter{
	{
		{"replays", always(nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY)}, {"recoveries", always(nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY)},
		{"crc", always(nvml.FI_DEV_NVLINK_ERROR_DL_CRC)},
	},
	{
		{"replays", perLink(nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6)},
		{"recoveries", perLink(nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6)},
		{"crc", perLink(nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6)},
		{"crc_data", perLink(nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6)},
	},
	{
		{"recoveries", always(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS)},
		{"recoveries_failed", always(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS)},
		{"malformed", always(nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS)},
		{"overruns", always(nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS)},
		{"receive", always(nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS)},
		{"receive_remote", always(nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS)},
		{"receive_general", always(nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS)},
		{"integrity", always(nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS)},
		{"discards", always(nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS)},
		{"effective", always(nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS)},
		{"symbol", always(nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS)},
	},
}

// newLinks is where the counters of NVLink 5 are.
const newLinks = 2

func (q query) nvlinkCounts() {
	if len(q.links()) == 0 || q.g.NVLink.Counts.Known || q.g.NVLink.Counts.Err != nil { // another group has asked
		return
	}
	version := ask(q.s, "nvmlDeviceGetNvLinkVersion", q.who, func() (uint32, nvml.Return) { return q.d.GetNvLinkVersion(0) })
	order := []int{0, 1, newLinks}
	if version.Known && nvml.NvlinkVersion(version.Value) >= nvml.NVLINK_VERSION_5_0 {
		order = []int{newLinks, 0, 1}
	}
	for _, i := range order {
		if q.g.NVLink.Counts = q.countsOf(linkCounters[i]); q.g.NVLink.Counts.Known || q.g.NVLink.Counts.Err != nil {
			if i == newLinks {
				if v := q.linkFields(func(int) []uint32 { return []uint32{nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER} }); v != nil {
					q.g.NVLink.BER = list(v[0], DecodeBER)
				}
			}
			return
		}
	}
}

// countsOf asks for counters of all links at once.
func (q query) countsOf(counters []linkCounter) Reading[LinkCounts] {
	values := q.linkFields(func(link int) (ids []uint32) {
		for _, c := range counters {
			ids = append(ids, c.field(link))
		}
		return ids
	})
	counts := LinkCounts{}
	for i := range values {
		r := list(values[i], func(n int64) uint64 { return uint64(n) })
		if r.Err != nil {
			return Failed[LinkCounts](r.Err)
		}
		if r.Known {
			counts[counters[i].name] = r.Value
		}
	}
	if len(counts) == 0 {
		return Reading[LinkCounts]{}
	}
	return Known(counts)
}

// DecodeBER is a bit error rate as NVML packs it: the exponent of ten, negated, in
// the low byte, the mantissa in the four bits above. 15e-255 is that of a link that
// has none.
func DecodeBER(packed int64) float64 {
	mantissa := packed >> nvml.NVLINK_BER_MANTISSA_SHIFT & nvml.NVLINK_BER_MANTISSA_WIDTH
	exponent := packed >> nvml.NVLINK_BER_EXP_SHIFT & nvml.NVLINK_BER_EXP_WIDTH
	if mantissa == 0 {
		return 0
	}
	return float64(mantissa) * math.Pow10(-int(exponent))
}

// p2pStates are the words for nvmlGpuP2PStatus_t.
var p2pStates = [...]string{
	P2POK, "chipset not supported", "GPU not supported", "topology not supported", "disabled by a setting of the driver", "not supported", "unknown",
}

var p2pKinds = []struct {
	cap  nvml.GpuP2PCapsIndex
	word string
}{{nvml.P2P_CAPS_INDEX_NVLINK, "NVLink"}, {nvml.P2P_CAPS_INDEX_READ, "read"}, {nvml.P2P_CAPS_INDEX_WRITE, "write"}}

// p2p asks a GPU about every other one that has NVLinks up.
func (q query) p2p() {
	if len(q.links()) == 0 {
		return
	}
	peers := PeerP2P{}
	var failed error
	for i, peer := range q.s.devices {
		if peer == nil || i == q.g.Index || q.s.stateOf(i) != nil {
			continue
		}
		for _, kind := range p2pKinds {
			who := fmt.Sprintf("(%d, %d)", q.g.Index, i)
			r := unknownIsUnsupported(ask(q.s, "nvmlDeviceGetP2PStatus", who, func() (nvml.GpuP2PStatus, nvml.Return) { return q.d.GetP2PStatus(peer, kind.cap) }))
			if IsGPUState(r.Err) {
				q.s.pairState(i)
			}
			switch {
			case q.s.stateOf(i) != nil: // nothing of the pair is this GPU's fault
				delete(peers, gpuName(i))
			case r.Err != nil: // of this pair, which hides no other
				failed = r.Err
				delete(peers, gpuName(i))
			case !r.Known:
			case r.Value == nvml.P2P_STATUS_OK:
				peers[gpuName(i)] = P2POK
				continue
			case int(r.Value) < len(p2pStates) && r.Value > 0:
				peers[gpuName(i)] = kind.word + ": " + p2pStates[r.Value]
			default:
				peers[gpuName(i)] = fmt.Sprintf("%s: status %d", kind.word, r.Value)
			}
			break // the first that is not ok says enough
		}
	}
	if len(peers) > 0 {
		q.g.NVLink.PeerP2P = Known(peers)
	}
	q.g.NVLink.PeerP2P.Err = failed
}

func gpuName(i int) string { return fmt.Sprintf("gpu%d", i) }
