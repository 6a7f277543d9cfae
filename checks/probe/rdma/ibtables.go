package rdma

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/network"
)

// PKey is an entry of a port's partition table. Bit 15 says that the port is a full
// member of the partition, which may talk to limited ones, too.
type PKey struct {
	Index int
	Key   uint16
}

// Full says whether the port is a full member.
func (k PKey) Full() bool { return k.Key&0x8000 != 0 }

// Partition is the key without the bit of membership.
func (k PKey) Partition() uint16 { return k.Key & 0x7fff }

// maxTable bounds a table of a port; those of mlx5 have 128 partitions, 256 GIDs.
const maxTable = 4096

// IBPKeys reads the partition table of a port in order, without its empty entries,
// until enough says that it has seen enough: each entry costs a command of the
// adapter's firmware. An error leaves what was read before it.
func IBPKeys(h *probe.Host, device, port string, enough func(PKey) bool) (list []PKey, err error) {
	err = table(h, device, port, "pkeys", func(i int, text string) (bool, error) {
		n, err := strconv.ParseUint(text, 0, 16)
		if err != nil {
			return false, fs.ErrInvalid
		}
		k := PKey{Index: i, Key: uint16(n)}
		if k.Partition() == 0 { // 0x0000, and 0x8000, which is none either
			return false, nil
		}
		list = append(list, k)
		return enough(k), nil
	})
	return list, err
}

// GID is an entry of a port's table of addresses.
type GID struct {
	Index  int
	ID     [16]byte
	Type   string // "RoCE v2", "IB/RoCE v1"; "" if the kernel does not tell
	NetDev string // the network interface whose address it is; "" on InfiniBand
}

// LinkLocal says whether it is an address of the link alone, which no router passes
// on: fe80::/10.
func (g GID) LinkLocal() bool { return g.ID[0] == 0xfe && g.ID[1]&0xc0 == 0x80 }

// IBGIDs reads the GIDs of a port in order, without empty entries, until enough says
// that it has seen enough. An error leaves what was read before it.
func IBGIDs(h *probe.Host, device, port string, enough func(GID) bool) (list []GID, err error) {
	dir := filepath.Join(ibClass, device, "ports", port, "gid_attrs")
	err = table(h, device, port, "gids", func(i int, text string) (bool, error) {
		id, ok := parseGID(text)
		if !ok {
			return false, fs.ErrInvalid
		}
		if id == [16]byte{} {
			return false, nil
		}
		g := GID{Index: i, ID: id}
		var err error
		g.Type, err = attribute(h, filepath.Join(dir, "types", strconv.Itoa(i)))
		if err == nil {
			g.NetDev, err = attribute(h, filepath.Join(dir, "ndevs", strconv.Itoa(i)))
		}
		if err != nil { // what it is good for is not known
			return false, err
		}
		list = append(list, g)
		return enough(g), nil
	})
	return list, err
}

// attribute is that of a GID. Entries that have just become empty answer EINVAL, and
// so do the interfaces of InfiniBand.
func attribute(h *probe.Host, path string) (string, error) {
	text, err := h.ReadValue(path)
	if vanished(err) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	return strings.TrimSpace(text), err
}

// table reads the files 0, 1, 2 ... of a port's directory until entry says that it
// is done. One that cannot be read hides no other.
func table(h *probe.Host, device, port, name string, entry func(int, string) (bool, error)) error {
	dir := filepath.Join(ibClass, device, "ports", port, name)
	var errs []error
	for i := range maxTable {
		path := filepath.Join(dir, strconv.Itoa(i))
		text, err := h.ReadValue(path)
		if errors.Is(err, fs.ErrNotExist) && i > 0 {
			break
		}
		done := false
		if err == nil {
			if done, err = entry(i, strings.TrimSpace(text)); errors.Is(err, fs.ErrInvalid) {
				err = &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
			}
		}
		if done {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
		}
		if vanished(err) || len(errs) >= 3 {
			break
		}
	}
	return errors.Join(errs...)
}

// parseGID reads "fe80:0000:0000:0000:b83f:d203:00c5:1a03".
func parseGID(text string) (id [16]byte, ok bool) {
	words := strings.Split(text, ":")
	if len(words) != 8 {
		return id, false
	}
	for i, w := range words {
		n, ok := network.ParseHex(w)
		if !ok || n > 0xffff {
			return [16]byte{}, false
		}
		id[2*i], id[2*i+1] = byte(n>>8), byte(n)
	}
	return id, true
}

// vanished says whether an error is that something is not there, or has just been
// taken out.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// IBGID0 is the first GID of a port, which over InfiniBand is its subnet's prefix and
// its GUID.
func IBGID0(h *probe.Host, device, port string) ([16]byte, error) {
	path := filepath.Join(ibClass, device, "ports", port, "gids/0")
	text, err := h.ReadValue(path)
	if err != nil {
		return [16]byte{}, err
	}
	id, ok := parseGID(strings.TrimSpace(text))
	if !ok {
		return id, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
	}
	return id, nil
}
