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

// PKey is an entry of a port's partition table. Bit 15 means that the port is a full member of the
// partition, which may communicate with limited members, too.
type PKey struct {
	Index int
	Key   uint16
}

// Full reports whether the port is a full member.
func (k PKey) Full() bool { return k.Key&0x8000 != 0 }

// Partition returns the key without the membership bit.
func (k PKey) Partition() uint16 { return k.Key & 0x7fff }

// maxTable bounds a table of a port; those of mlx5 have 128 partitions, 256 GIDs.
const maxTable = 4096

// IBPKeys reads the partition table of a port in order, without its empty entries, until enough
// returns true: each entry costs a command of the adapter's firmware. With an error it returns the
// entries that it has read.
func IBPKeys(h *probe.Host, device, port string, enough func(PKey) bool) (list []PKey, err error) {
	err = readTable(h, device, port, "pkeys", func(i int, text string) (bool, error) {
		n, err := strconv.ParseUint(text, 0, 16)
		if err != nil {
			return false, fs.ErrInvalid
		}
		k := PKey{Index: i, Key: uint16(n)}
		if k.Partition() == 0 { // 0x0000 and 0x8000 are empty
			return false, nil
		}
		list = append(list, k)
		return enough(k), nil
	})
	return list, err
}

// GID is an entry of a port's address table.
type GID struct {
	Index  int
	ID     [16]byte
	Type   string // "RoCE v2", "IB/RoCE v1"; "" if unknown
	NetDev string // the network interface whose address it is; "" on InfiniBand
}

// LinkLocal reports whether it is a link-local address, which no router forwards: fe80::/10.
func (g GID) LinkLocal() bool { return g.ID[0] == 0xfe && g.ID[1]&0xc0 == 0x80 }

// IBGIDs reads the GIDs of a port in order, without empty entries, until enough returns true. With
// an error it returns the entries that it has read.
func IBGIDs(h *probe.Host, device, port string, enough func(GID) bool) (list []GID, err error) {
	dir := filepath.Join(ibClass, device, "ports", port, "gid_attrs")
	err = readTable(h, device, port, "gids", func(i int, text string) (bool, error) {
		id, ok := parseGID(text)
		if !ok {
			return false, fs.ErrInvalid
		}
		if id == [16]byte{} {
			return false, nil
		}
		g := GID{Index: i, ID: id}
		var err error
		g.Type, err = readAttribute(h, filepath.Join(dir, "types", strconv.Itoa(i)))
		if err == nil {
			g.NetDev, err = readAttribute(h, filepath.Join(dir, "ndevs", strconv.Itoa(i)))
		}
		if err != nil { // the type is unknown
			return false, err
		}
		list = append(list, g)
		return enough(g), nil
	})
	return list, err
}

// readAttribute reads an attribute of a GID. It ignores EINVAL, the answer of entries that have just
// become empty and of InfiniBand interfaces.
func readAttribute(h *probe.Host, path string) (string, error) {
	text, err := h.ReadValue(path)
	if isVanished(err) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	return strings.TrimSpace(text), err
}

// readTable reads the files 0, 1, 2 ... of a port's directory until entry returns true. It continues
// after a file that it cannot read.
func readTable(h *probe.Host, device, port, name string, entry func(int, string) (bool, error)) error {
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
		if isVanished(err) || len(errs) >= 3 {
			break
		}
	}
	return errors.Join(errs...)
}

// parseGID parses "fe80:0000:0000:0000:b83f:d203:00c5:1a03".
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

// isVanished reports whether an error means that a file does not exist, or was just removed.
func isVanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

// IBGID0 returns the first GID of a port, which over InfiniBand consists of its subnet's prefix and
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
