package conf

import (
	"bytes"
	"slices"
	"unicode/utf8"
)

// Source is one line of nhc.conf as [Parse] reads it, with the place of every byte in the file.
type Source struct {
	Text   string
	Pos    Pos
	Eaten  []int // offsets in Text behind a backslash that was dropped without need
	Joined []int // offsets in Text at which a backslash joined the next line
	CR     bool  // the line ends in CR LF

	places []place
	end    place
}

type place struct{ line, column int }

// Place returns the line and the column, in characters from 1, of a byte of Text.
func (s *Source) Place(offset int) (line, column int) {
	at := s.end
	if offset < len(s.places) {
		at = s.places[offset]
	}
	return at.line, at.column
}

// Sources splits nhc.conf into lines as [Parse] does.
func Sources(file string, data []byte) (sources []Source) {
	data = bytes.TrimSuffix(bytes.ReplaceAll(data, []byte{0}, nil), []byte("\r"))
	at := place{1, 1}
	for len(data) > 0 {
		s := Source{Pos: Pos{file, at.line}}
		var text []byte
		for ended := false; len(data) > 0 && !ended; {
			_, size := utf8.DecodeRune(data)
			escaped := data[0] == '\\'
			here := at
			if escaped {
				data, at.column = data[1:], at.column+1
				if _, size = utf8.DecodeRune(data); size == 0 {
					break
				}
			}
			if bytes.HasPrefix(data, []byte("\r\n")) {
				s.CR, data = true, data[1:]
			}
			switch c := data[0]; {
			case c == '\n' && escaped:
				s.Joined = append(s.Joined, len(text))
			case c == '\n':
				ended = true
			default:
				if escaped && c != '\\' {
					s.Eaten = append(s.Eaten, len(text))
				}
				text = append(text, data[:size]...)
				s.places = append(s.places, slices.Repeat([]place{here}, size)...)
			}
			if data[0] == '\n' {
				s.end, at, size = at, place{at.line + 1, 1}, 1
			} else {
				at.column++
				s.end = at
			}
			data = data[size:]
		}
		s.Text = string(text)
		sources = append(sources, s)
	}
	return sources
}
