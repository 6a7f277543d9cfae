package nvml

import (
	"cmp"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// This file reads the NVLinks of a GPU. It reads only links that are up or sleep: for others the driver has
// no speed, no far end and no counter that grows.

// NVLink has NVML's values of a GPU's NVLinks, except whether they are up. Each list is as long as
// GPU.NVLinks, in the order of the links' numbers.
type NVLink struct {
	Speed   Reading[[]int]      // MB/s, one direction; 0 if unknown; see UnreadSpeed
	Idle    Reading[[]bool]     // up, but closed to traffic
	Far     Reading[[]string]   // the far end: "switch", "gpu", "npu", "unknown"; "" if NVML does not report it
	FarPCI  Reading[[]string]   // its address: 0000:05:00.0; "" if unknown
	Counts  Reading[LinkCounts] // since the driver was loaded; see UnreadCount
	BER     Reading[[]float64]  // effective bit error rate, of NVLink 5 and later; 0: none or unknown
	PeerP2P Reading[PeerP2P]
}

// LinkCounts has the counters of each link, by the counter's name.
type LinkCounts map[string][]uint64

// These are the count and the speed of a link whose values could not be read.
const (
	UnreadCount = math.MaxUint64
	UnreadSpeed = -1
)

// PeerP2P has, for each peer such as "gpu5", whether a GPU can access its memory over NVLink: "ok",
// or the missing capability and the reason.
type PeerP2P map[string]string

// P2POK is the value for an accessible peer.
const P2POK = "ok"

// readLinks returns the NVLinks of the GPU, read only once; nil if it has none.
func (q query) readLinks() []bool {
	if !q.g.NVLinks.Known && q.g.NVLinks.Err == nil {
		q.readNVLinks()
	}
	return q.g.NVLinks.Value
}

// eachLink returns the list of a call's readings for every link that is up.
func eachLink[T any](q query, call func(link int) Reading[T]) Reading[[]T] {
	up := q.readLinks()
	list, known, failed := make([]T, len(up)), false, error(nil)
	for link := range up {
		if !up[link] {
			continue
		}
		r := unknownIsUnsupported(call(link))
		list[link] = r.Value
		known, failed = known || r.Known, cmp.Or(failed, r.Err)
	}
	return partly(list, known, failed)
}

// partly returns a list that has some values.
func partly[T any](list T, known bool, failed error) Reading[T] {
	if !known {
		return Reading[T]{Err: failed}
	}
	return Reading[T]{Value: list, Known: true, Err: failed}
}

// linkFields reads fields of every link that is up in one call; the lists are in the order of the
// fields.
func (q query) linkFields(field func(link int) []uint32) [][]Reading[int64] {
	up := q.readLinks()
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

// list combines the readings of all links to one. unread is the value of a link with an error.
func list[T any](of []Reading[int64], unread T, change func(int64) T) Reading[[]T] {
	values, known, failed := make([]T, len(of)), false, error(nil)
	for link, r := range of {
		switch {
		case r.Known:
			values[link], known = change(r.Value), true
		case r.Err != nil:
			values[link], failed = unread, cmp.Or(failed, r.Err)
		}
	}
	return partly(values, known, failed)
}

// speedFields are the fields of drivers before 515, one for each link.
var speedFields = append(span(nvml.FI_DEV_NVLINK_SPEED_MBPS_L0, 6), span(nvml.FI_DEV_NVLINK_SPEED_MBPS_L6, 6)...)

func span(first uint32, n int) (ids []uint32) {
	for i := range n {
		ids = append(ids, first+uint32(i))
	}
	return ids
}

// closed is NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED.
const closed = nvml.NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED

func (q query) readNVLinkSpeed() {
	v := q.linkFields(func(int) []uint32 {
		return []uint32{nvml.FI_DEV_NVLINK_GET_SPEED, nvml.FI_DEV_NVLINK_GET_STATE}
	})
	if v == nil {
		return
	}
	speed := func(n int64) int { return int(max(n, 0)) }
	q.g.NVLink.Speed = list(v[0], UnreadSpeed, speed)
	q.g.NVLink.Idle = list(v[1], false, func(n int64) bool { return n == closed })
	if !q.g.NVLink.Speed.Known && q.g.NVLink.Speed.Err == nil {
		v = q.linkFields(func(link int) []uint32 {
			if link < len(speedFields) {
				return []uint32{speedFields[link]}
			}
			return []uint32{nvml.FI_DEV_NVLINK_SPEED_MBPS_COMMON}
		})
		q.g.NVLink.Speed = list(v[0], UnreadSpeed, speed)
	}
}

// countSleeping sets the links that are not down but sleep: NVML_NVLINK_STATE_SLEEP. Older drivers do not report it.
func (q query) countSleeping(up, unread []bool) {
	var down []scoped
	for link := range up {
		if !up[link] && !unread[link] {
			down = append(down, scoped{nvml.FI_DEV_NVLINK_GET_STATE, uint32(link)})
		}
	}
	if len(down) == 0 {
		return
	}
	for i, r := range q.scopedFields(down) {
		up[down[i].scope] = r.Known && r.Value == nvml.NVLINK_STATE_SLEEP
	}
}

// farEnds are the names of nvmlIntNvLinkDeviceType_t.
var farEnds = map[nvml.IntNvLinkDeviceType]string{
	nvml.NVLINK_DEVICE_TYPE_GPU: "gpu", nvml.NVLINK_DEVICE_TYPE_IBMNPU: "npu", nvml.NVLINK_DEVICE_TYPE_SWITCH: "switch",
}

func (q query) readNVLinkFar() {
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
			if p.Domain == 0 && p.Bus == 0 && p.Device == 0 { // a switch of another chassis has no address on this node
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

// perLink returns the counters of drivers before 515, which have a field for each of twelve links.
// For a higher link it returns 0, which is not a field.
func perLink(first, seventh uint32) func(int) uint32 {
	ids := append(span(first, 6), span(seventh, 6)...)
	return func(link int) uint32 {
		if link < len(ids) {
			return ids[link]
		}
		return 0 // no field: not supported
	}
}

// linkCounters has the counters by the generation of NVLink: up to 4; the same by the fields of
// older drivers; and 5, whose FEC leaves other errors visible.
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

// newLinks is the index of the counters of NVLink 5.
const newLinks = 2

func (q query) readNVLinkCounts() {
	if len(q.readLinks()) == 0 || q.g.NVLink.Counts.Known || q.g.NVLink.Counts.Err != nil { // another group has read them
		return
	}
	version := ask(q.s, "nvmlDeviceGetNvLinkVersion", q.who, func() (uint32, nvml.Return) { return q.d.GetNvLinkVersion(0) })
	order := []int{0, 1, newLinks}
	if version.Known && nvml.NvlinkVersion(version.Value) >= nvml.NVLINK_VERSION_5_0 {
		order = []int{newLinks, 0, 1}
	}
	for _, i := range order {
		if q.g.NVLink.Counts = q.readCounts(linkCounters[i]); q.g.NVLink.Counts.Known || q.g.NVLink.Counts.Err != nil {
			if i == newLinks {
				if v := q.linkFields(func(int) []uint32 { return []uint32{nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER} }); v != nil {
					q.g.NVLink.BER = list(v[0], 0, DecodeBER)
				}
			}
			return
		}
	}
}

// readCounts reads counters of all links in one call.
func (q query) readCounts(counters []linkCounter) Reading[LinkCounts] {
	values := q.linkFields(func(link int) (ids []uint32) {
		for _, c := range counters {
			ids = append(ids, c.field(link))
		}
		return ids
	})
	counts, failed := LinkCounts{}, error(nil)
	for i := range values {
		r := list(values[i], UnreadCount, func(n int64) uint64 { return uint64(n) })
		if failed = cmp.Or(failed, r.Err); r.Known {
			counts[counters[i].name] = r.Value
		}
	}
	return partly(counts, len(counts) > 0, failed)
}

// DecodeBER decodes NVML's packed bit error rate: the negated exponent of ten in the low byte, the
// mantissa in the next four bits. 15e-255 means that the link has none.
func DecodeBER(packed int64) float64 {
	mantissa := packed >> nvml.NVLINK_BER_MANTISSA_SHIFT & nvml.NVLINK_BER_MANTISSA_WIDTH
	exponent := packed >> nvml.NVLINK_BER_EXP_SHIFT & nvml.NVLINK_BER_EXP_WIDTH
	if mantissa == 0 {
		return 0
	}
	return float64(mantissa) * math.Pow10(-int(exponent))
}

// p2pStates are the names of nvmlGpuP2PStatus_t.
var p2pStates = [...]string{
	P2POK, "chipset not supported", "GPU not supported", "topology not supported", "disabled by a setting of the driver", "not supported", "unknown",
}

var p2pKinds = []struct {
	cap  nvml.GpuP2PCapsIndex
	word string
}{{nvml.P2P_CAPS_INDEX_NVLINK, "NVLink"}, {nvml.P2P_CAPS_INDEX_READ, "read"}, {nvml.P2P_CAPS_INDEX_WRITE, "write"}}

// readP2P reads the access of a GPU to every other one that has NVLinks up.
func (q query) readP2P() {
	if len(q.readLinks()) == 0 {
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
			break // the first that is not ok is enough
		}
	}
	if len(peers) > 0 {
		q.g.NVLink.PeerP2P = Known(peers)
	}
	q.g.NVLink.PeerP2P.Err = failed
}

func gpuName(i int) string { return fmt.Sprintf("gpu%d", i) }
