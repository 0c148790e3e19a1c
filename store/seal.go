package store

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"
)

// A SealKey seals values, so that the database alone does not tell them.
type SealKey struct {
	id  string
	key [chacha20poly1305.KeySize]byte
}

// NewSealKey returns a random key.
func NewSealKey() SealKey {
	var k SealKey
	rand.Read(k.key[:])
	k.name()
	return k
}

// name gives the key an id, by which a sealed value says what it was sealed with.
func (k *SealKey) name() {
	sum := sha256.Sum256(append([]byte("sandgate vault key "), k.key[:]...))
	k.id = hex.EncodeToString(sum[:8])
}

// ID is no secret.
func (k SealKey) ID() string { return k.id }

// seal seals a value that is only opened again together with bound.
func (k SealKey) seal(value []byte, bound string) []byte {
	aead, err := chacha20poly1305.NewX(k.key[:])
	if err != nil { // only of a key of the wrong length
		panic(err)
	}
	// 24 random bytes do not repeat, however many values are sealed.
	nonce := make([]byte, chacha20poly1305.NonceSizeX, chacha20poly1305.NonceSizeX+len(value)+chacha20poly1305.Overhead)
	rand.Read(nonce)
	return aead.Seal(nonce, nonce, value, []byte(bound+"\x00"+k.id))
}

var errSealed = errors.New("the sealed value was damaged, or belongs to something else")

func (k SealKey) open(sealed []byte, bound string) ([]byte, error) {
	aead, err := chacha20poly1305.NewX(k.key[:])
	if err != nil {
		panic(err)
	}
	if len(sealed) < chacha20poly1305.NonceSizeX {
		return nil, errSealed
	}
	value, err := aead.Open(nil, sealed[:chacha20poly1305.NonceSizeX], sealed[chacha20poly1305.NonceSizeX:], []byte(bound+"\x00"+k.id))
	if err != nil {
		return nil, errSealed
	}
	return value, nil
}

// ParseSealKeys reads keys, one to a line in base64. Values are sealed with the
// first; the others open what was sealed before.
func ParseSealKeys(text []byte) ([]SealKey, error) {
	var keys []SealKey
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(line)
		if err != nil || len(b) != chacha20poly1305.KeySize {
			// The line may be a key with a slip in it: it is not repeated.
			return nil, fmt.Errorf("key %d of the vault is not %d bytes in base64", len(keys)+1, chacha20poly1305.KeySize)
		}
		k := SealKey{key: [chacha20poly1305.KeySize]byte(b)}
		k.name()
		keys = append(keys, k)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("keys of the vault: %w", err)
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key for the vault where one should be")
	}
	return keys, nil
}

// readSealKeys reads a file of keys. fs.ErrNotExist if there is none.
func readSealKeys(path string) ([]SealKey, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others than its owner: chmod 600 it", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys, err := ParseSealKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// writeSealKeys replaces a file of keys: after a crash it is the old or the new.
func writeSealKeys(path string, keys []SealKey) error {
	var b strings.Builder
	b.WriteString("# Opens the secrets in sandgate's database. Keep a copy, and not beside the database's.\n")
	for _, k := range keys {
		b.WriteString(base64.StdEncoding.EncodeToString(k.key[:]) + "\n")
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-") // 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails, as it should, once it is renamed
	_, err = f.WriteString(b.String())
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
