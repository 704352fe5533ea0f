package host

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// A Reply is an answer to Ping.
type Reply struct {
	From netip.Addr
	Took time.Duration
}

// Ping sends ICMP echo requests to an IPv4 address from the namespace at path
// until one is answered or ctx ends.
func Ping(ctx context.Context, path string, to netip.Addr) (Reply, error) {
	var conn *net.IPConn
	// A socket belongs to the namespace of the thread that makes it, whoever
	// uses it later.
	err := Do(path, func() (err error) {
		conn, err = net.DialIP("ip4:icmp", nil, &net.IPAddr{IP: to.AsSlice()})
		return err
	})
	if err != nil {
		return Reply{}, fmt.Errorf("host: ping %s: %w", to, err)
	}
	defer func() { _ = conn.Close() }()

	answer := make([]byte, 128)
	for seq := uint16(1); ; seq++ {
		start := time.Now()
		if _, err := conn.Write(echo(seq)); err != nil {
			return Reply{}, fmt.Errorf("host: ping %s: %w", to, err)
		}
		_ = conn.SetReadDeadline(start.Add(200 * time.Millisecond))
		for {
			n, _, err := conn.ReadFrom(answer) // Read would return the IP header, too
			if err != nil {
				break
			}
			// Type 0 is an echo reply; the identifier and the number follow
			// type, code and checksum.
			if n >= 8 && answer[0] == 0 && binary.BigEndian.Uint16(answer[6:]) == seq {
				return Reply{From: to, Took: time.Since(start)}, nil
			}
		}
		if err := ctx.Err(); err != nil {
			return Reply{}, fmt.Errorf("host: ping %s: no answer: %w", to, err)
		}
	}
}

// echo returns an ICMP echo request (RFC 792): type 8, code 0, checksum,
// identifier, sequence number.
func echo(seq uint16) []byte {
	b := make([]byte, 8)
	b[0] = 8
	binary.BigEndian.PutUint16(b[4:], 0x6c62)
	binary.BigEndian.PutUint16(b[6:], seq)
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum+sum>>16))
	return b
}
