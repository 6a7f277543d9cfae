package wire

import (
	"bufio"
	stdbytes "bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
)

// A message is a header and the fields that are not zero, each a number and a value. encoding/json
// analyzes a type before its first value: for these messages that took a tenth of an empty run, so
// only fields that few messages have are JSON. Both ends are the same program.

// The header is a mark, which no text begins with, and the length of the fields, bytes.
const (
	mark   = 0x01
	header = 5
)

// ErrMessage is the error of bytes that are not a message.
var ErrMessage = errors.New("not a message")

// message is a type that names its fields to a codec, always in the same order.
type message interface{ fields(c *codec) }

// Append appends a message to b. An error names the value that has no encoding; b is unchanged then.
func Append(b []byte, m message) ([]byte, error) {
	c := codec{text: append(b, mark, 0, 0, 0, 0)}
	m.fields(&c)
	if c.err != nil {
		return b, c.err
	}
	binary.LittleEndian.PutUint32(c.text[len(b)+1:], uint32(len(c.text)-len(b)-header))
	return c.text, nil
}

// Read reads a message of at most most bytes. The error is io.EOF if nothing came,
// io.ErrUnexpectedEOF if only a part of a message came, and [ErrMessage] if something else came.
func Read(r *bufio.Reader, most int, m message) error {
	head, err := r.Peek(header)
	if len(head) > 0 && head[0] != mark {
		some, _ := r.Peek(r.Buffered())
		some, _, _ = stdbytes.Cut(some, []byte{mark})
		return fmt.Errorf("%w: %.60q", ErrMessage, some)
	}
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	length := int64(binary.LittleEndian.Uint32(head[1:]))
	if length > int64(most) {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrMessage, length, most)
	}
	text := make([]byte, header+length)
	if _, err := io.ReadFull(r, text); err != nil {
		return err
	}
	return decode(text[header:], m)
}

func decode(text []byte, m message) error {
	c := codec{text: text, reads: true}
	m.fields(&c)
	if c.err == nil && len(c.text) > 0 {
		c.err = ErrMessage
	}
	return c.err
}

// codec encodes the fields of a message, or decodes them.
type codec struct {
	text  []byte // the encoded fields, or those left to decode
	reads bool
	field byte // the number of the last field, from 1
	err   error
}

// next starts a field. It reports whether the caller encodes or decodes the value now.
func (c *codec) next(zero bool) bool {
	c.field++
	switch {
	case c.err != nil:
		return false
	case !c.reads && !zero:
		c.text = append(c.text, c.field)
		return true
	case c.reads && len(c.text) > 0 && c.text[0] == c.field:
		c.text = c.text[1:]
		return true
	}
	return false
}

// number encodes n, or returns the decoded one.
func (c *codec) number(n int64) int64 {
	if !c.reads {
		c.text = binary.AppendVarint(c.text, n)
		return n
	}
	n, size := binary.Varint(c.text)
	if size <= 0 {
		c.err = ErrMessage
		return 0
	}
	c.text = c.text[size:]
	return n
}

// count encodes a length, or returns the decoded one, which is at most the number of bytes left.
func (c *codec) count(n int) int {
	if n := c.number(int64(n)); !c.reads || c.err == nil && n >= 0 && n <= int64(len(c.text)) {
		return int(n)
	}
	c.err = ErrMessage
	return 0
}

// bytes encodes b, or returns the decoded ones, which are a part of the message.
func (c *codec) bytes(b []byte) []byte {
	n := c.count(len(b))
	if !c.reads {
		c.text = append(c.text, b...)
		return b
	}
	b, c.text = c.text[:n:n], c.text[n:]
	return b
}

func (c *codec) string(s string) string {
	if !c.reads {
		c.count(len(s))
		c.text = append(c.text, s...)
		return s
	}
	return string(c.bytes(nil))
}

// list encodes a list, or returns the decoded one.
func list[T any](c *codec, l []T, value func(T) T) []T {
	n := c.count(len(l))
	if c.reads {
		l = make([]T, n)
	}
	for i := range l {
		if v := value(l[i]); c.reads { // requests to several lanes share a list
			l[i] = v
		}
	}
	return l
}

// table encodes a map, or returns the decoded one.
func table[T any](c *codec, m map[string]T, value func(T) T) map[string]T {
	n := c.count(len(m))
	if !c.reads {
		for key, v := range m {
			c.string(key)
			value(v)
		}
		return m
	}
	m = make(map[string]T, n)
	for range n {
		key := c.string("")
		m[key] = value(*new(T))
	}
	return m
}

// These are the fields of a message.

func number[T ~int | ~int64 | ~uint32](c *codec, v *T) {
	if c.next(*v == 0) {
		*v = T(c.number(int64(*v)))
	}
}

func yes(c *codec, v *bool) {
	if c.next(!*v) {
		*v = true
	}
}

func text[T ~string](c *codec, v *T) {
	if c.next(*v == "") {
		*v = T(c.string(string(*v)))
	}
}

func bytes(c *codec, v *[]byte) {
	if c.next(len(*v) == 0) {
		*v = c.bytes(*v)
	}
}

func texts(c *codec, v *[]string) {
	if c.next(len(*v) == 0) {
		*v = list(c, *v, c.string)
	}
}

func lines(c *codec, v *[][]byte) {
	if c.next(len(*v) == 0) {
		*v = list(c, *v, c.bytes)
	}
}

func textTable(c *codec, v *map[string]string) {
	if c.next(len(*v) == 0) {
		*v = table(c, *v, c.string)
	}
}

func listTable(c *codec, v *map[string][]string) {
	if c.next(len(*v) == 0) {
		*v = table(c, *v, func(l []string) []string { return list(c, l, c.string) })
	}
}

// part is a message in a message.
func part[T any, P interface {
	*T
	message
}](c *codec, v **T) {
	if !c.next(*v == nil) {
		return
	}
	sub := codec{reads: c.reads}
	if c.reads {
		*v, sub.text = new(T), c.bytes(nil)
	}
	P(*v).fields(&sub)
	if !c.reads {
		c.bytes(sub.text)
	} else if sub.err == nil && len(sub.text) > 0 {
		sub.err = ErrMessage
	}
	if c.err == nil {
		c.err = sub.err
	}
}

// rare is a value that few messages have, in JSON.
func rare[T any](c *codec, v *T) {
	value := reflect.ValueOf(v).Elem()
	if kind := value.Kind(); !c.next(value.IsZero() || (kind == reflect.Slice || kind == reflect.Map) && value.Len() == 0) {
		return
	}
	if c.reads {
		b := c.bytes(nil)
		if err := json.Unmarshal(b, v); c.err == nil && err != nil {
			c.err = fmt.Errorf("%w: %w", ErrMessage, err)
		}
		return
	}
	b, err := json.Marshal(v)
	c.bytes(b)
	c.err = err
}
