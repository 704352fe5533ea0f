package queue

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/metacni/metacni/delegate/thick/wire"
)

const (
	entrySuffix   = ".json"
	damagedSuffix = ".corrupt"

	sumHead = `{"sum":"`
	sumTail = `",`
	sumLen  = len(sumHead) + 2*sha256.Size + len(sumTail)

	maxFile = wire.MaxBody + int64(sumLen)
)

// Name returns the name of r's file, a hash of the attachment that r is about,
// so that a runtime that asks again does not fill the queue. Only a request
// whose configuration says its name has one.
func Name(r wire.Request) (string, error) {
	var conf *struct {
		Name string `json:"name"`
	}
	// Not the error itself, which quotes the configuration.
	if err := json.Unmarshal(r.Config, &conf); err != nil || conf == nil {
		return "", errConfig
	}
	h := sha256.New()
	for _, part := range []string{conf.Name, r.Env["CNI_CONTAINERID"], r.Env["CNI_IFNAME"]} {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(part)))
		h.Write(n[:])
		h.Write([]byte(part))
	}
	return hex.EncodeToString(h.Sum(nil)) + entrySuffix, nil
}

// encode returns the name and the content of r's file. The content is the JSON
// of r with one more key at its start, a sum of the rest: a DEL with one letter
// changed may be another container's.
func encode(r wire.Request) (name string, data []byte, err error) {
	if name, err = Name(r); err != nil {
		return "", nil, err
	}
	r.DeadlineMs = 0 // nobody waits for it
	body, err := json.Marshal(r)
	if err != nil {
		return "", nil, err
	}
	if len(body) > wire.MaxBody {
		return "", nil, errTooMuch
	}
	return name, append([]byte(head(body)), body[1:]...), nil
}

// decode returns the request that encode has made the file name of. A JSON
// object that does not begin as encode has it is of another version.
func decode(name string, data []byte) (wire.Request, error) {
	if !bytes.HasPrefix(data, []byte(sumHead)) && json.Valid(data) && data[0] == '{' {
		return wire.Request{}, ErrVersion
	}
	if len(data) < sumLen {
		return wire.Request{}, errors.New("cut off")
	}
	body := append([]byte{'{'}, data[sumLen:]...)
	if !bytes.HasPrefix(data, []byte(head(body))) {
		return wire.Request{}, errors.New("its sum is another")
	}
	var r wire.Request
	if err := json.Unmarshal(body, &r); err != nil {
		return wire.Request{}, errors.New("not a request")
	}
	if is, err := Name(r); err != nil || is != name {
		return wire.Request{}, errors.New("the request of another name")
	}
	return r, nil
}

// head returns what a file begins with, in place of the body's brace.
func head(body []byte) string {
	return fmt.Sprintf("%s%x%s", sumHead, sha256.Sum256(body), sumTail)
}

func isEntry(name string) bool { return isName(name, entrySuffix) }

func isDamaged(name string) bool { return isName(name, damagedSuffix) }

func isName(name, suffix string) bool {
	hash, found := strings.CutSuffix(name, suffix)
	if !found || len(hash) != 2*sha256.Size {
		return false
	}
	_, err := hex.DecodeString(hash)
	return err == nil
}

func damagedName(name string) string {
	return strings.TrimSuffix(name, entrySuffix) + damagedSuffix
}
