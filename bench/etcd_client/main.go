// A client of etcd for `tables.py`: 64 goroutines and one connection, as the client library of etcd
// has them by default.
//
//	etcd-client ENDPOINT put|get KEYS COUNT CLIENTS VALUE_BYTES
//
// prints the seconds that COUNT requests take. Gets are linearizable.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func number(text string) int64 {
	found, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return found
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	endpoint, operation := os.Args[1], os.Args[2]
	keys, count, clients := number(os.Args[3]), number(os.Args[4]), number(os.Args[5])
	value := strings.Repeat("v", int(number(os.Args[6])))
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second,
	})
	check(err)
	defer client.Close()
	ask := func(at int64) error {
		key := fmt.Sprintf("k%07d", at%keys)
		if operation == "put" {
			_, err := client.Put(context.Background(), key, value)
			return err
		}
		found, err := client.Get(context.Background(), key)
		if err == nil && len(found.Kvs) != 1 {
			err = fmt.Errorf("key %s is absent", key)
		}
		return err
	}
	// Connected before the clock starts.
	_, err = client.Get(context.Background(), "first")
	check(err)
	var next atomic.Int64
	var group sync.WaitGroup
	began := time.Now()
	for range clients {
		group.Add(1)
		go func() {
			defer group.Done()
			for at := next.Add(1) - 1; at < count; at = next.Add(1) - 1 {
				check(ask(at))
			}
		}()
	}
	group.Wait()
	fmt.Println(time.Since(began).Seconds())
}
