package ifname

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// linkMessage builds the body of an RTM_NEWLINK message.
func linkMessage(name string, alt ...string) []byte {
	props := nl.NewRtAttr(unix.IFLA_PROP_LIST|unix.NLA_F_NESTED, nil)
	for _, a := range alt {
		props.AddRtAttr(unix.IFLA_ALT_IFNAME, nl.ZeroTerminated(a))
	}
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize()
	msg = append(msg, nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(1500)).Serialize()...)
	msg = append(msg, nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)).Serialize()...)
	return append(msg, props.Serialize()...)
}

func TestLinkNames(t *testing.T) {
	t.Parallel()
	msgs := [][]byte{linkMessage("lo"), linkMessage("eth0", "blue", "a-very-long-alternative-name")}
	boom := errors.New("boom")
	for _, tt := range []struct {
		name  string
		dumps []error // how each dump ends; the last goes on forever
		msgs  [][]byte
		want  []string
		err   error
	}{
		{"once", []error{nil}, msgs, []string{"lo", "eth0", "blue", "a-very-long-alternative-name"}, nil},
		{"interrupted", []error{nl.ErrDumpInterrupted, nl.ErrDumpInterrupted, nil}, msgs[:1], []string{"lo"}, nil},
		{"interrupted without end", []error{nl.ErrDumpInterrupted}, msgs, nil, nl.ErrDumpInterrupted},
		{"refused", []error{boom}, nil, nil, boom},
		{"interrupted, then refused", []error{nl.ErrDumpInterrupted, boom}, nil, nil, boom},
		{"nothing", []error{nil}, nil, nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			got, err := linkNames(func() ([][]byte, error) {
				calls++
				return tt.msgs, tt.dumps[min(calls, len(tt.dumps))-1]
			})
			if !errors.Is(err, tt.err) || (err == nil) != (tt.err == nil) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if calls > dumps {
				t.Errorf("%d dumps, want at most %d", calls, dumps)
			}
		})
	}
}

// A list that cannot be read whole is an error: names left out would be given
// out again.
func TestLinkNamesMalformed(t *testing.T) {
	t.Parallel()
	good := linkMessage("eth0", "blue")
	badProps := nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize()
	badProps = append(badProps, nl.NewRtAttr(unix.IFLA_PROP_LIST, []byte{0xff, 0xff, 0, 0}).Serialize()...)
	badLen := append([]byte(nil), good...)
	binary.NativeEndian.PutUint16(badLen[unix.SizeofIfInfomsg:], 0xffff)
	for name, msg := range map[string][]byte{
		"empty": {}, "short": good[:10], "long attribute": badLen, "bad property": badProps,
	} {
		got, err := linkNames(func() ([][]byte, error) { return [][]byte{good, msg, good}, nil })
		if err == nil || got != nil {
			t.Errorf("%s: %q, %v; want an error", name, got, err)
		}
	}
}

// No message panics.
func FuzzAppendNames(f *testing.F) {
	f.Add(linkMessage("lo"))
	f.Add(linkMessage("eth0", "blue", ""))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, msg []byte) {
		names, err := appendNames(nil, msg)
		if err != nil && names != nil {
			t.Errorf("names %q with error %v", names, err)
		}
		for _, name := range names {
			if len(name) > len(msg) {
				t.Errorf("name of %d bytes from %d", len(name), len(msg))
			}
		}
	})
}
